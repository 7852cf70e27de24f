help([[A module that only sets a variable, to see that modules work.]])
whatis("Name: tools")
whatis("Version: 1.0")
setenv("TOOLS_HOME", "/opt/apps/tools/1.0")
