// Package offload will move long-lived flows into network cards. Its contract:
//
//   - Only the kernel's own interfaces are used: tc-flower with skip_sw on switchdev representors,
//     act_ct, XFRM packet offload and devlink. There is no vendor SDK, so one binary runs everywhere.
//   - The planner knows a card's limits before it asks, installs a trial rule at start, and says for
//     each flow why it is, or is not, in hardware.
//   - The CPU path stays complete: nothing works only with a card, and a flow that a card gives back
//     goes on in XDP with the same verdict.
package offload
