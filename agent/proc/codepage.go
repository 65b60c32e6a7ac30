package proc

import (
	"unicode/utf8"

	"golang.org/x/text/encoding"
	"golang.org/x/text/encoding/charmap"
	"golang.org/x/text/encoding/japanese"
	"golang.org/x/text/encoding/korean"
	"golang.org/x/text/encoding/simplifiedchinese"
	"golang.org/x/text/encoding/traditionalchinese"
)

// codePages are the code pages that consoles of Windows have, by number.
var codePages = map[uint32]encoding.Encoding{
	437: charmap.CodePage437, 850: charmap.CodePage850, 852: charmap.CodePage852, 855: charmap.CodePage855,
	858: charmap.CodePage858, 860: charmap.CodePage860, 862: charmap.CodePage862, 863: charmap.CodePage863,
	865: charmap.CodePage865, 866: charmap.CodePage866, 874: charmap.Windows874,
	1250: charmap.Windows1250, 1251: charmap.Windows1251, 1252: charmap.Windows1252, 1253: charmap.Windows1253,
	1254: charmap.Windows1254, 1255: charmap.Windows1255, 1256: charmap.Windows1256, 1257: charmap.Windows1257, 1258: charmap.Windows1258,
	932: japanese.ShiftJIS, 936: simplifiedchinese.GBK, 949: korean.EUCKR, 950: traditionalchinese.Big5,
	54936: simplifiedchinese.GB18030,
}

// decodeCodePage makes UTF-8 of a text that is written in a code page, unless
// it is UTF-8 already, as more and more programs write. cut says that it may
// begin in the middle of a character. An unknown page changes nothing.
func decodeCodePage(page uint32, text []byte, cut bool) []byte {
	known, ok := codePages[page]
	if !ok || isUTF8(text, cut) {
		return text
	}
	decoded, err := known.NewDecoder().Bytes(text)
	if err != nil {
		return text
	}
	return decoded
}

func isUTF8(text []byte, cut bool) bool {
	for rest := 0; cut && rest < utf8.UTFMax-1 && len(text) > 0 && !utf8.RuneStart(text[0]); rest++ {
		text = text[1:]
	}
	return utf8.Valid(text)
}
