//go:build !fault_folder

package pickup

// folderUnsynced is a fault that the tests of suite drill build in: folders are not fsynced.
const folderUnsynced = false
