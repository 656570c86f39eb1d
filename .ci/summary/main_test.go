package main

import (
	"strings"
	"testing"
)

func TestSummarise(t *testing.T) {
	const good = `{"Action":"run","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Test":"TestA","Output":"    a_test.go:3: seed 7\n"}
{"Action":"pass","Package":"p","Test":"TestA"}
{"Action":"output","Package":"p","Output":"PASS\n"}
{"Action":"output","Package":"p","Output":"coverage: 81.0% of statements\n"}
{"Action":"output","Package":"p","Output":"ok  \tp\t0.1s\tcoverage: 81.0% of statements\n"}
{"Action":"pass","Package":"p"}
`
	tests := []struct {
		name, in string
		minimum  float64
		ok       bool
		want     string
	}{
		{"good", good, 80, true, `
ok  	p	0.1s	coverage: 81.0% of statements
tests: 1 passed, 0 failed, 0 left out
`},
		{"too little coverage", good, 82, false, `
ok  	p	0.1s	coverage: 81.0% of statements
tests: 1 passed, 0 failed, 0 left out
coverage below 82%: p (81.0%)
`},
		{"left out", good + `{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:9: SOFTDPU_TESTDATA is not set\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"--- SKIP: TestB (0.00s)\n"}
{"Action":"skip","Package":"q","Test":"TestB"}
`, 0, true, `
ok  	p	0.1s	coverage: 81.0% of statements
tests: 1 passed, 0 failed, 1 left out
  left out 1: SOFTDPU_TESTDATA is not set
  data tests left out: 1
`},
		{"failed", good + `{"Action":"output","Package":"q","Test":"TestB","Output":"    b_test.go:9: wrong\n"}
{"Action":"output","Package":"q","Test":"TestB","Output":"--- FAIL: TestB (0.00s)\n"}
{"Action":"fail","Package":"q","Test":"TestB"}
{"Action":"output","Package":"q","Output":"FAIL\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`, 0, false, `
ok  	p	0.1s	coverage: 81.0% of statements
    b_test.go:9: wrong
--- FAIL: TestB (0.00s)
FAIL	q	0.1s
tests: 1 passed, 1 failed, 0 left out
failed packages: q
failed: q TestB
    b_test.go:9: wrong
`},
		{"broken off", good + `{"Action":"output","Package":"q","Test":"TestB","Output":"panic: boom\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq\t0.1s\n"}
{"Action":"fail","Package":"q"}
`, 0, false, `
ok  	p	0.1s	coverage: 81.0% of statements
FAIL	q	0.1s
panic: boom
tests: 1 passed, 0 failed, 0 left out
failed packages: q
unfinished: q TestB
`},
		{"does not build", good + `{"ImportPath":"q","Action":"build-output","Output":"./x.go:1:1: bad\n"}
{"Action":"output","Package":"q","Output":"FAIL\tq [build failed]\n"}
{"Action":"fail","Package":"q"}
`, 0, false, `
ok  	p	0.1s	coverage: 81.0% of statements
./x.go:1:1: bad
FAIL	q [build failed]
tests: 1 passed, 0 failed, 0 left out
failed packages: q
`},
		{"the go command failed", good + `{"Action":"exit","Output":"2"}
`, 0, false, `
ok  	p	0.1s	coverage: 81.0% of statements
tests: 1 passed, 0 failed, 0 left out
the go command failed: status 2
`},
		{"the go command complains", "go: errors parsing go.mod\n", 0, false, `
go: errors parsing go.mod
tests: 0 passed, 0 failed, 0 left out
no test ran
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var b strings.Builder
			ok, err := summarise(strings.NewReader(tt.in), &b, tt.minimum, nil)
			if err != nil || ok != tt.ok {
				t.Errorf("ok %t, %v", ok, err)
			}
			if got := "\n" + b.String(); got != tt.want {
				t.Errorf("got:%swant:%s", got, tt.want)
			}
		})
	}
}
