package brokertest

import (
	"os/exec"
	"syscall"
)

// dieWithParent makes the kernel kill the process when the thread that started it ends: a test binary that
// panics or is killed runs no clean-up.
func dieWithParent(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
