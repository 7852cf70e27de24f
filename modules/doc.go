// Package modules loads environment modules: it finds out what `module load`
// of Lmod or Environment Modules changes, and gives it to commands.
//
//	Client ──Load("cuda/12", "gcc")──▶ Delta{Set: PATH=…, LD_LIBRARY_PATH=…}
//	Set = base Executor + names: every request gets the Delta's variables
//
// Modules are shell functions, set up by the profile of a login shell, so a
// login bash is run, through any Executor: what a site says when one logs in
// (banners, warnings, programs that hang) comes with it. Nothing of that is
// taken for an answer: the answer goes to a descriptor of its own between
// marks, and the time is bounded.
package modules
