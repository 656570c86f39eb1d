package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/softdpu/softdpu/firewall"
)

// evePolicy is the policy that an event is about.
type evePolicy struct {
	Epoch uint32   `json:"epoch"`
	Hash  string   `json:"hash"` // as hashFiles has it
	Files []string `json:"files"`
	Rules int      `json:"rules"` // without built-in ones
	Zones int      `json:"zones"` // with `host`
	Tests int      `json:"tests"`
}

// hashFiles returns the SHA-256 of files one behind the other, in hex digits.
func hashFiles(files []string) (string, error) {
	h := sha256.New()
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("hash policy: %w", err)
		}
		_, err = io.Copy(h, f)
		f.Close()
		if err != nil {
			return "", fmt.Errorf("hash policy: %w", err)
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// policyChange writes that a policy is in force from now on, and who did that.
func (e *eventLog) policyChange(r *Ruleset, epoch uint32, hash, by string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: evePolicyType,
		Policy: &evePolicy{
			Epoch: epoch, Hash: hash, Files: r.Files, Rules: len(r.Compiled.Rules) - int(firewall.RuleFirst),
			Zones: len(r.Compiled.Zones) - 1, Tests: len(r.Compiled.Tests),
		},
		Softdpu: eveRule{Event: "policy-loaded", By: by},
	})
}

// gateway writes that the gateway of that version has started or stops.
func (e *eventLog) gateway(event, version string) {
	e.write(&eveEvent{
		Timestamp: time.Now().Format(eveTime), EventType: eveGatewayType,
		Softdpu: eveRule{Event: event, Version: version},
	})
}
