package dataplane

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/softdpu/softdpu/bpf"
	pipeline "github.com/softdpu/softdpu/flowtable/pipe"
)

// counts adds what a pipeline of the run before has counted to one of the same layout.
func (f *front) counts(prog *pipeline.Program) (err error) {
	info, err := f.program.Info()
	if err != nil {
		return err
	}
	ids, _ := info.MapIDs()
	maps := make(map[string]*ebpf.Map)
	defer func() {
		for _, m := range maps {
			err = errors.Join(err, m.Close())
		}
	}()
	for _, id := range ids {
		m, err := ebpf.NewMapFromID(id)
		if err != nil {
			return err
		}
		info, err := m.Info()
		if err != nil {
			return errors.Join(err, m.Close())
		}
		if other := maps[info.Name]; other != nil {
			other.Close()
		}
		maps[info.Name] = m
	}
	spec, err := bpf.LoadPipes()
	if err != nil {
		return fmt.Errorf("read the program of pipelines: %w", err)
	}
	layout := spec.Variables[bpf.PipesVarPipeLayout]
	constants, entries := maps[layout.SectionName], maps[bpf.PipesMapPipeEntries]
	if constants == nil || entries == nil {
		return errors.New("the one before is of another version")
	}
	value, err := constants.LookupBytes(uint32(0))
	if err != nil {
		return fmt.Errorf("read constants of the one before: %w", err)
	}
	var was [4]uint64
	if end := int(layout.Offset) + len(layout.Value); len(value) < end {
		return errors.New("the one before is of another version")
	} else if _, err := binary.Decode(value[layout.Offset:end], binary.NativeEndian, &was); err != nil {
		return err
	}
	if was != prog.Layout() {
		return nil // another one, by intention
	}
	var mem memory
	defer mem.close()
	old, err := view[bpf.PipesPipeEntry](&mem, entries)
	if err == nil {
		prog.AdoptCounts(old)
	}
	return err
}
