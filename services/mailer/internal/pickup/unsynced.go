//go:build !fault_folder

package pickup

// folderUnsynced is a fault that the tests of suite drill build in: the folder of staged files is not fsynced.
const folderUnsynced = false
