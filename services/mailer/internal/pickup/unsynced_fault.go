//go:build fault_folder

package pickup

const folderUnsynced = true
