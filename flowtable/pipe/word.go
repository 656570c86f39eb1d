package pipe

import "github.com/softdpu/softdpu/bpf"

// Words of struct pipe_fields that more than matches know.
const (
	wordPort     = int(bpf.PipesPipeWordPIPE_PORT)
	wordRandom   = int(bpf.PipesPipeWordPIPE_RANDOM)
	wordColor    = int(bpf.PipesPipeWordPIPE_COLOR)
	wordLength   = int(bpf.PipesPipeWordPIPE_LENGTH)
	wordEthSrc   = int(bpf.PipesPipeWordPIPE_ETH_SRC)
	wordEthType  = int(bpf.PipesPipeWordPIPE_ETH_TYPE)
	wordVLANs    = int(bpf.PipesPipeWordPIPE_VLANS)
	wordVLAN0ID  = int(bpf.PipesPipeWordPIPE_VLAN0ID)
	wordVLAN0PCP = int(bpf.PipesPipeWordPIPE_VLAN0PCP)
	wordVLAN1ID  = int(bpf.PipesPipeWordPIPE_VLAN1ID)

	wordVLAN1PCP = int(bpf.PipesPipeWordPIPE_VLAN1PCP)
	wordProto    = int(bpf.PipesPipeWordPIPE_IP_PROTO)
	wordTTL      = int(bpf.PipesPipeWordPIPE_IP_TTL)
	wordDSCP     = int(bpf.PipesPipeWordPIPE_IP_DSCP)
	wordECN      = int(bpf.PipesPipeWordPIPE_IP_ECN)
	wordIPSrc    = int(bpf.PipesPipeWordPIPE_IP_SRC)
	wordIPDst    = int(bpf.PipesPipeWordPIPE_IP_DST)
	wordSport    = int(bpf.PipesPipeWordPIPE_L4SPORT)
	wordDport    = int(bpf.PipesPipeWordPIPE_L4DPORT)
	wordFlags    = int(bpf.PipesPipeWordPIPE_TCP_FLAGS)
	wordICMPType = int(bpf.PipesPipeWordPIPE_ICMP_TYPE)
	wordICMPCode = int(bpf.PipesPipeWordPIPE_ICMP_CODE)
	wordCT       = int(bpf.PipesPipeWordPIPE_CT_STATE)
	wordTick     = int(bpf.PipesPipeWordPIPE_TICK)
	wordWritten  = int(bpf.PipesPipeWordPIPE_WRITTEN)
	wordMirror   = int(bpf.PipesPipeWordPIPE_MIRROR)
	wordIndex    = int(bpf.PipesPipeWordPIPE_INDEX)
)

const (
	wroteEth   = uint32(bpf.PipesPipeWrittenPIPE_WROTE_ETH)
	wroteVLAN  = uint32(bpf.PipesPipeWrittenPIPE_WROTE_VLAN)
	wroteTTL   = uint32(bpf.PipesPipeWrittenPIPE_WROTE_TTL)
	wroteTOS   = uint32(bpf.PipesPipeWrittenPIPE_WROTE_TOS)
	wroteIP    = uint32(bpf.PipesPipeWrittenPIPE_WROTE_IP)
	wrotePorts = uint32(bpf.PipesPipeWrittenPIPE_WROTE_PORTS)
)

// maxGroups is how many groups of ports there are room for.
const maxGroups = int(bpf.PipesPipeLimitPIPE_GROUPS)

// Forwards: enum pipe_forward.
const (
	forwardShift = uint32(bpf.PipesPipeForwardPIPE_FORWARD_SHIFT)
	forwardMask  = uint32(bpf.PipesPipeForwardPIPE_FORWARD_MASK)

	toDrop   = uint32(bpf.PipesPipeForwardPIPE_TO_DROP) << forwardShift
	toHost   = uint32(bpf.PipesPipeForwardPIPE_TO_HOST) << forwardShift
	toPolicy = uint32(bpf.PipesPipeForwardPIPE_TO_POLICY) << forwardShift
	toPort   = uint32(bpf.PipesPipeForwardPIPE_TO_PORT) << forwardShift
	toStage  = uint32(bpf.PipesPipeForwardPIPE_TO_STAGE) << forwardShift
	toPorts  = uint32(bpf.PipesPipeForwardPIPE_TO_PORTS) << forwardShift
	toPipe   = uint32(bpf.PipesPipeForwardPIPE_TO_PIPE) << forwardShift
)

// Parts of a forward to a stage: enum pipe_stage.
const (
	stagePort   = uint32(bpf.PipesPipeStagePIPE_STAGE_PORT)
	stageCopy   = int(bpf.PipesPipeStagePIPE_STAGE_COPY)
	stageShift  = uint32(bpf.PipesPipeStagePIPE_STAGES)
	stageMask   = uint32(bpf.PipesPipeStagePIPE_STAGE_MASK)
	stageBypass = uint32(bpf.PipesPipeStagePIPE_STAGE_BYPASS)
)

// stageBits are STAGE_* of abi_work.h.
var stageBits = map[Stage]uint32{StageForward: bpf.StageForward, StageMirror: bpf.StageMirror}

// A forward to a pipe has the pipe's number in its lowest bits, above them the index of an ordered list's entry, or,
// with the highest bit, the word that says the index, and what the packet must have for that.
const (
	forwardPipe  = uint32(MaxPipes - 1)
	forwardIndex = 6         // shift
	forwardHas   = 12        // shift: 1 + number of the bit of enum pipe_has
	forwardWord  = 1 << 23   // the index is a word's
	maxIndex     = 1<<17 - 1 // of an ordered list
)

const entryCounts = uint16(bpf.PipesPipeEntryFlagPIPE_ENTRY_COUNTS)

// reasonTTL is why a packet whose time to live has run out is dropped.
const reasonTTL = uint32(bpf.XDPReasonREASON_PIPE_TTL)

// tickShift is TICK_SHIFT of abi.h: a tick is so many bits of ns.
const tickShift = 20
