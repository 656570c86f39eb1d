package softdpu_test

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/softdpu/softdpu"

// mayImport says which packages of this module a package may use, besides those below it in its own
// folder: the nearest folder named here decides. A package may also use what its imports may use,
// because the order of the layers is what counts. "*" is everything.
var mayImport = map[string][]string{
	"bpf":                     nil,
	"dataplane/packet":        nil,
	"dataplane/xsk":           nil,
	"dataplane/worker":        {"bpf", "dataplane/xsk"},
	"testenv":                 nil,
	"flowtable":               {"bpf", "dataplane/packet", "firewall/mistake"},
	"flowtable/pipe/pipefile": {"firewall"},
	"firewall":                {"flowtable"},
	"firewall/schema":         nil,
	"firewall/mistake":        nil,
	"firewall/inspect":        {"dataplane/packet"},
	"ipsec":                   {"dataplane/packet"},
	"dataplane":               {"bpf", "flowtable", "firewall", "firewall/inspect", "ipsec", "dataplane/packet", "dataplane/xsk", "dataplane/worker", "dataplane/offload"},
	"dataplane/offload":       {"flowtable"},
	"gateway":                 {"dataplane", "flowtable/pipe/pipefile"},
	"deploy":                  nil,
	"bench":                   {"*"},
	"cmd":                     {"*"},
}

// apart are packages that check others, so they share nothing with them but what stands here.
var apart = map[string][]string{
	"testenv":               nil,
	"flowtable/pipe/oracle": {"bpf", "flowtable/pipe"}, // the model
	"gateway/sim/oracle":    {"firewall"},              // the parsed policy
}

// onlyInTests are what shipped code never uses on or near the packet path: gopacket builds and checks
// packets in tests, captures and tools.
var onlyInTests = map[string][]string{
	"github.com/google/gopacket": {"bpf", "dataplane", "flowtable", "firewall", "ipsec"},
	"testing":                    {"bpf", "dataplane", "flowtable", "firewall", "ipsec", "gateway", "testenv", "bench", "cmd"},
}

type goPackage struct {
	ImportPath                         string
	Imports, TestImports, XTestImports []string
}

func TestImportDirection(t *testing.T) {
	packages := listPackages(t)
	if len(packages) < 3 {
		t.Fatalf("go list finds only %d packages", len(packages))
	}
	for _, p := range packages {
		name, ours := inModule(p.ImportPath)
		if !ours || name == "" {
			continue
		}
		layer, ok := layerOf(name)
		if !ok {
			t.Errorf("%s belongs to no layer: give it a line in mayImport", name)
			continue
		}
		for _, imported := range p.Imports {
			used, ours := inModule(imported)
			if ours && !allowed(layer, used) {
				t.Errorf("%s imports %s, which is not below it", name, used)
			}
			if only, ok := apart[name]; ok && ours && !slices.Contains(only, used) {
				t.Errorf("%s imports %s, which it checks", name, used)
			}
			for forbidden, layers := range onlyInTests {
				if (imported == forbidden || strings.HasPrefix(imported, forbidden+"/")) && within(layer, layers) {
					t.Errorf("%s imports %s, which belongs in tests", name, imported)
				}
			}
		}
		// What tests the others must not share their mistakes.
		if name == "testenv" {
			for _, imported := range slices.Concat(p.TestImports, p.XTestImports) {
				if used, ours := inModule(imported); ours && used != "testenv" {
					t.Errorf("a test of %s imports %s", name, used)
				}
			}
		}
	}
}

func TestLayers(t *testing.T) {
	tests := []struct {
		from, to string
		want     bool
	}{
		{"firewall", "flowtable", true},
		{"firewall", "dataplane/packet", true}, // through flowtable
		{"flowtable", "firewall", false},
		{"bpf", "flowtable", false},
		{"testenv", "bpf", false},
		{"dataplane", "gateway", false},
		{"gateway", "testenv", false},
		{"gateway", "gateway/sim", true},
		{"gateway/sim", "dataplane", true},
		{"cmd/softdpu", "testenv", true},
		{"firewall/inspect", "firewall", false},
	}
	for _, tt := range tests {
		t.Run(tt.from+" "+tt.to, func(t *testing.T) {
			layer, ok := layerOf(tt.from)
			if !ok {
				t.Fatal("no layer")
			}
			if got := allowed(layer, tt.to); got != tt.want {
				t.Errorf("allowed %t", got)
			}
		})
	}
}

func listPackages(t *testing.T) []goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-e", "-json=ImportPath,Imports,TestImports,XTestImports", "./...")
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Fatalf("go list: %v\n%s", err, exit.Stderr)
		}
		t.Fatalf("go list: %v", err)
	}
	var packages []goPackage
	for d := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		if err := d.Decode(&p); err == io.EOF {
			return packages
		} else if err != nil {
			t.Fatalf("read go list: %v", err)
		}
		packages = append(packages, p)
	}
}

// inModule returns the package's path within this module.
func inModule(importPath string) (string, bool) {
	if importPath == module {
		return "", true
	}
	return strings.CutPrefix(importPath, module+"/")
}

// layerOf returns the nearest folder, from name upwards, that mayImport names.
func layerOf(name string) (string, bool) {
	for ; name != "."; name = path.Dir(name) {
		if _, ok := mayImport[name]; ok {
			return name, true
		}
	}
	return "", false
}

// allowed reports whether a package of the layer may import the package.
func allowed(layer, name string) bool {
	to, ok := layerOf(name)
	if !ok {
		return false
	}
	if to == layer {
		return true // the rest of its own folder
	}
	for _, below := range mayImport[layer] {
		if below == "*" || below == to || allowed(below, name) {
			return true
		}
	}
	return false
}

func within(layer string, layers []string) bool {
	for ; layer != "."; layer = path.Dir(layer) {
		if slices.Contains(layers, layer) {
			return true
		}
	}
	return false
}
