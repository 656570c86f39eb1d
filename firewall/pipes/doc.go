// Package pipes says in the model of flowtable/pipe what a compiled policy does: which pipes the packet that opens a flow
// comes to, which entries these have, and what became of each in the running programs. It decides nothing. The classifiers of
// the policy do, which are those that pipes of kind acl become; a test holds this description against them.
package pipes
