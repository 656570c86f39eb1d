package gateway

import "time"

// evePipeline is the pipe that an event is about.
type evePipeline struct {
	Name    string            `json:"name"` // of the pipeline
	Pipe    string            `json:"pipe"`
	Entries *int              `json:"entries,omitempty"` // that the pipe has now
	Added   int               `json:"added,omitempty"`
	Updated int               `json:"updated,omitempty"`
	Removed int               `json:"removed,omitempty"`
	Entry   *evePipelineEntry `json:"entry,omitempty"` // that is old
}

// evePipelineEntry is an entry that no packet has used for its age.
type evePipelineEntry struct {
	Name    string   `json:"name"` // "" if it has none
	Match   []string `json:"match"`
	IdleS   float64  `json:"idle_s"`
	Packets uint64   `json:"packets"`
	Bytes   uint64   `json:"bytes"`
	Removed bool     `json:"removed"`
}

// pipelineChange writes that a pipe has other entries from now on, and who did that.
func (e *eventLog) pipelineChange(by, comment string, p *evePipeline) {
	e.pipelineEvent("entries-changed", by, comment, p)
}

// pipelineAged writes that an entry was not used for as long as it may be.
func (e *eventLog) pipelineAged(p *evePipeline) { e.pipelineEvent("entry-aged", "", "", p) }

func (e *eventLog) pipelineEvent(event, by, comment string, p *evePipeline) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePipelineType, Pipeline: p,
		Softdpu: eveRule{Event: event, By: by, Comment: comment},
	})
}
