package plaintext

import "net/url"

// URL returns a URL without its user part, query and fragment, which may hold
// secrets, for answers, logs and errors. It returns "" for text that is no
// absolute URL, since nothing says where a secret begins in it.
func URL(text string) string {
	u, err := url.Parse(text)
	if err != nil || u.Host == "" {
		return ""
	}
	shown := url.URL{Scheme: u.Scheme, Host: u.Host, Path: u.Path, RawPath: u.RawPath}
	return shown.String()
}
