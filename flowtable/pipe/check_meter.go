package pipe

import "slices"

// Bounds of meters: more does not fit the arithmetic of the packet path.
const (
	maxRate   = MeterRate // units a second
	maxBurst  = MeterSize // units
	fullFrame = 1514      // bytes, of a full frame
)

// meterTypes are those of meters, in the order of the documentation.
var meterTypes = []string{"rfc2697", "rfc2698", "rfc4115"}

// meter checks the parameters of a meter, which differ by its type.
func (c *checker) meter(at subject, m *Meter) {
	if !slices.Contains(meterTypes, m.Type) {
		c.fail(nearHint(at.Errorf("there is no type %q", m.Type), m.Type, meterTypes, "it is one of: "+commas(meterTypes)))
		return
	}
	for i, name := range [2]string{"cir", map[string]string{"rfc2697": "a second rate", "rfc2698": "pir", "rfc4115": "eir"}[m.Type]} {
		if m.Rate[i] > maxRate {
			c.fail(at.Errorf("%s is %d a second: at most %d is possible", name, m.Rate[i], uint64(maxRate)).WithHint("no link is as fast: leave the meter out"))
		}
	}
	for i, name := range [2]string{"cbs", map[string]string{"rfc2697": "ebs", "rfc2698": "pbs", "rfc4115": "ebs"}[m.Type]} {
		if m.Size[i] > maxBurst {
			c.fail(at.Errorf("%s is %d: at most %d is possible", name, m.Size[i], uint64(maxBurst)).WithHint("a second of the rate is much already"))
		}
	}
	if m.Rate[0] == 0 && (m.Type != "rfc4115" || m.Rate[1] == 0) {
		c.fail(at.Errorf("it has no rate").WithHint("add cir: 10Mbit, or 1000pps"))
	}
	switch {
	case m.Type == "rfc2697" && m.Rate[1] != 0:
		c.fail(at.Errorf("a meter after RFC 2697 has one rate").WithHint("take rfc2698 or rfc4115, which have two"))
	case m.Type == "rfc2697" && m.Size[0] == 0 && m.Size[1] == 0:
		c.fail(at.Errorf("cbs and ebs are 0, so that everything is red").WithHint("add cbs: 64KB"))
	case m.Type == "rfc2698" && m.Rate[1] < m.Rate[0]:
		c.fail(at.Errorf("pir %d is less than cir %d", m.Rate[1], m.Rate[0]).WithHint("the peak rate holds the committed one: RFC 4115 has an excess rate beside it"))
	case m.Type == "rfc2698" && (m.Size[0] == 0 || m.Size[1] == 0):
		c.fail(at.Errorf("cbs or pbs is 0, so that nothing is green").WithHint("add cbs: 64KB and pbs: 64KB"))
	case m.Type == "rfc4115" && (m.Rate[0] > 0 && m.Size[0] == 0 || m.Rate[1] > 0 && m.Size[1] == 0):
		c.fail(at.Errorf("a rate without a burst lets nothing pass").WithHint("add cbs: 64KB for cir, ebs: 64KB for eir"))
	case m.Size[0] > 0 && m.Size[0] < fullFrame && !m.Packets:
		c.warn(at.Errorf("cbs is %d bytes, so that a full frame is never green", m.Size[0]).WithHint("raise it to %d at least", fullFrame))
	}
}
