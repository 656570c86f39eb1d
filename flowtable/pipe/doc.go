// Package pipe is softdpu's model of match/action pipes: pipelines that operators write (docs/pipes.md), and those
// that the gateway's own policy comes to. A pipeline is checked ([Pipeline.Check]), compiled to a plan and to tables
// ([Compile]), and run by two executors that must agree: instructions and maps in XDP ([Program.Replace]), and Go
// ([Program.Run]).
package pipe
