//go:build !linux

package pickup

func renameNoReplace(f *folder, oldName, newName string) error {
	return renameChecked(f, oldName, newName)
}
