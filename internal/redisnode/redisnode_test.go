package redisnode

import (
	"testing"
	"time"
)

func TestValueRoundTrip(t *testing.T) {
	v := Value{"AAAAAAAAAAAAAAAAAAAAAA", 178123456789012, time.UnixMilli(1781234567890), 30 * time.Second, "host 7, x\n\x00 ü"}
	got, err := ParseValue(v.String())
	if err != nil || got != v {
		t.Errorf("ParseValue(%q) = %+v, %v; want %+v", v.String(), got, err, v)
	}
	for _, s := range []string{"", "dl1", "x y z", "dl1  1 2 3 ", "dl1 o x 2 3 m", "dl2 o 1 2 3 m", "dl1 o 1 2 3"} {
		if v, err := ParseValue(s); err == nil {
			t.Errorf("ParseValue(%q) = %+v, want an error", s, v)
		}
	}
}
