package worker_test

import (
	"os"
	"testing"

	"github.com/softdpu/softdpu/testenv"
)

// TestMain fails the run if a test left descriptors or mappings of sockets behind.
func TestMain(m *testing.M) { os.Exit(testenv.RunWithoutLeaks(m)) }
