package proc

import "testing"

func TestOutputIsReadInTheCodePageOfTheHost(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		page uint32
		text string
		want string
	}{
		{936, "\xb7\xfe\xce\xf1\xd2\xd1\xc6\xf4\xb6\xaf\r\n", "服务已启动\r\n"},
		{936, "plain ASCII", "plain ASCII"},
		{936, "服务", "服务"},                     // UTF-8 already
		{54936, "\x81\x30\x84\x36", "\u00a5"}, // four bytes of GB 18030
		{932, "\x83\x54\x81\x5b\x83\x72\x83\x58", "サービス"},
		{949, "\xbc\xad\xba\xf1\xbd\xba", "서비스"},
		{950, "\xaa\x41\xb0\xc8", "服務"},
		{437, "caf\x82", "café"},
		{850, "\x84\x94\x81", "äöü"},
		{1252, "\x80 5", "€ 5"},
		{65001, "\xff", "\xff"}, // UTF-8 itself
		{1, "\xff", "\xff"},     // no known encoding
	} {
		if got := string(decodeCodePage(test.page, []byte(test.text), false)); got != test.want {
			t.Errorf("%q in code page %d is read as %q, want %q", test.text, test.page, got, test.want)
		}
	}
}

func TestOutputCutInTheMiddleOfACharacterIsReadFromTheNextLineOn(t *testing.T) {
	t.Parallel()
	const whole = "\xb7\xfe\xce\xf1\n\xd2\xd1\xc6\xf4\xb6\xaf\n"
	got := cleanText(decodeCodePage(936, []byte(whole[1:]), true), 100)
	if want := "已启动\n"; len(got) < len(want) || got[len(got)-len(want):] != want {
		t.Errorf("read as %q, which does not end with %q", got, want)
	}
}

func TestOutputInUTF8MayBeCut(t *testing.T) {
	t.Parallel()
	const whole = "服务已启动"
	for cut := range 3 {
		if got := string(decodeCodePage(936, []byte(whole[cut:]), true)); got != whole[cut:] {
			t.Errorf("%q is read as %q", whole[cut:], got)
		}
	}
}
