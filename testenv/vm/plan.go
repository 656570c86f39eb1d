package main

// A plan is what the host tells the guest, in planFile.
type plan struct {
	Modules []string // files of moduleDir, in the order to load them
	Steps   []step
}

// A step is a program to run. Its output is events of tests, told from the next one's by marks.
type step struct {
	Name    string
	Program string
	Dir     string
	Args    []string
	Env     []string
}

// Where things are in the guest.
const (
	planFile  = "/plan.json"
	moduleDir = "/modules"
	sourceDir = "/src"   // the module's source, as tests want to be in its folders
	testDir   = "/tests" // test programs
	builtDir  = "/built" // other programs of ours
)

// The guest's second serial line carries the steps' output, and lines that begin with mark: "begin NAME",
// "end NAME CODE" and, when all is over, "done". The first is the kernel's, which may say something at any time.
const (
	resultLine = "/dev/ttyS1"
	mark       = "\x01vm "
	markBegin  = "begin"
	markEnd    = "end"
	markDone   = "done"
)

// QEMU's isa-debug-exit ends the machine with twice the byte that is written to its port, and one: so an end that
// the guest wanted is never 0, which is what a panic or a power failure gives.
const (
	exitPort   = 0xf4
	exitWanted = 0
	exitBroken = 1
	statusGood = exitWanted*2 + 1
)
