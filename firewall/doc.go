// Package firewall is the policy language: it reads policy files, checks them, compiles them to the
// rows of an ACL pipe and runs a policy's own tests.
//
// There are two phases. Load turns files into a Policy, what the operator wrote, and reports every
// mistake with file, line and column. Compile turns a Policy into a Compiled, the immutable table
// that a classifier is built from; it is a pure function of its arguments.
package firewall
