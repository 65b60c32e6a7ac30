// Package local is how an agent tells those on its own host what it does: over
// a Unix socket in its data folder, which answers the file's owner and root,
// whether or not the agent reaches a server.
//
// Who asks connects, writes one [Question] and reads one [Answer], both JSON;
// the agent closes. New fields may come, which others ignore. A new version
// is for what an old program must not misread.
package local
