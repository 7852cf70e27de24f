help([[Apptainer: containers without privileges.]])
whatis("Name: Apptainer")
whatis("Version: 1.4.5")
prepend_path("PATH", "/opt/apps/apptainer/1.4.5/bin")
