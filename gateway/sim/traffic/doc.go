// Package traffic makes random policies, and random packets that go where such a policy has
// something to say: conversations that it allows and refuses, errors, fragments, malformed frames.
//
// A Stream is one world with its policies and the packets for it. All of it follows from the seed, so
// a packet is found again by seed and index (Replay). Each packet comes with what package oracle says
// must become of it; the stream counts the reasons and rules that were reached and steers towards
// those that are still rare.
//
// What a packet is about is called its recipe. Recipes plan short conversations; the packets of some
// two dozen of them are interleaved.
package traffic
