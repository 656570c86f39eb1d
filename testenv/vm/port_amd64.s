#include "textflag.h"

// func outb(port uint16, value byte)
TEXT ·outb(SB), NOSPLIT, $0-3
	MOVW port+0(FP), DX
	MOVB value+2(FP), AX
	BYTE $0xee // out dx, al
	RET
