package openapi

import (
	"bytes"
	"strings"
	"testing"

	"golang.org/x/net/html"

	"github.com/procfleet/procfleet/dispatcher/dialect"
)

// parsed returns the page of all dialects, parsed as in a browser.
func parsed(t *testing.T) (*API, *html.Node) {
	t.Helper()
	api, _ := document(t)
	page, err := api.Page()
	if err != nil {
		t.Fatal(err)
	}
	root, err := html.Parse(bytes.NewReader(page))
	if err != nil {
		t.Fatal(err)
	}
	return api, root
}

func attribute(n *html.Node, name string) (string, bool) {
	for _, a := range n.Attr {
		if a.Key == name {
			return a.Val, true
		}
	}
	return "", false
}

func words(n *html.Node) string {
	var all strings.Builder
	for d := range n.Descendants() {
		if d.Type == html.TextNode {
			all.WriteString(d.Data)
		}
	}
	return all.String()
}

// The page loads no other resources: it works without access to the internet, and reveals its
// readers to no other server.
func TestThePageFetchesNothing(t *testing.T) {
	t.Parallel()
	_, root := parsed(t)
	for n := range root.Descendants() {
		switch n.Data {
		case "script", "link", "img", "iframe", "object", "embed", "form", "base":
			if n.Type == html.ElementNode {
				t.Errorf("the page has a <%s>", n.Data)
			}
		}
		for _, a := range n.Attr {
			switch {
			case a.Key == "href" && (strings.HasPrefix(a.Val, "#") || a.Val == "/openapi.json"):
			case a.Key == "href", a.Key == "src", a.Key == "srcset", a.Key == "style", strings.HasPrefix(a.Key, "on"):
				t.Errorf("<%s %s=%q>", n.Data, a.Key, a.Val)
			}
		}
	}
	if strings.Contains(pageStyle, "url(") || strings.Contains(pageStyle, "@import") {
		t.Error("the style fetches something")
	}
}

// Readers look for procfleet's own API first.
func TestThePageAndTheDocumentBeginWithTheNativeAPI(t *testing.T) {
	t.Parallel()
	_, root := parsed(t)
	for n := range root.Descendants() {
		if n.Data == "h2" {
			if at := n.Attr[0].Val; at != "api-native" {
				t.Errorf("the page begins with %s", at)
			}
			break
		}
	}
	api, _ := document(t)
	text, err := api.JSON()
	if err != nil {
		t.Fatal(err)
	}
	for _, first := range []string{`"tags":[{"name":"Native"`, `"paths":{"/v1/tasks"`} {
		if !bytes.Contains(text, []byte(first)) {
			t.Errorf("the document does not have %s", first)
		}
	}
}

func TestEveryCallHasItsPlaceOnThePage(t *testing.T) {
	t.Parallel()
	api, root := parsed(t)
	anchors := make(map[string]*html.Node)
	for n := range root.Descendants() {
		if id, is := attribute(n, "id"); is {
			if anchors[id] != nil {
				t.Errorf("two places are called %s", id)
			}
			anchors[id] = n
		}
	}
	for n := range root.Descendants() {
		if to, is := attribute(n, "href"); is && strings.HasPrefix(to, "#") && anchors[to[1:]] == nil {
			t.Errorf("a link leads to %s, which is nowhere", to)
		}
	}
	for _, d := range dialect.All() {
		for _, family := range d.Reached() {
			for _, call := range family.Calls {
				at := anchors[call.Name]
				if at == nil {
					t.Errorf("%s has no place", call.Name)
					continue
				}
				said := words(at.Parent)
				for _, path := range call.Paths {
					if !strings.Contains(said, strings.TrimSuffix(path, "/{$}")) {
						t.Errorf("%s does not show %s", call.Name, path)
					}
				}
			}
		}
	}
	for _, d := range api.Dialects {
		for _, call := range d.Calls {
			said := words(anchors[call.Name].Parent)
			_, answer, _ := call.text.shown()
			for _, row := range append(whole(call.text.Request), whole(answer)...) {
				if !strings.Contains(said, row.Name) {
					t.Errorf("%s does not show the member %s", call.Name, row.Name)
				}
			}
			for _, p := range call.Places {
				for _, f := range p.Failures {
					if !strings.Contains(said, f.Code) || !strings.Contains(said, f.Meaning) {
						t.Errorf("%s does not show the failure %s", call.Name, f.kind)
					}
				}
			}
		}
	}
}

// The page must say that one of two members is required: the list of members does not show it.
func TestThePageSaysWhichMembersDoForOneAnother(t *testing.T) {
	t.Parallel()
	_, root := parsed(t)
	said := words(root)
	for _, sentence := range []string{
		"There must be hosts or agent_id_list.", "There must be bk_biz_id or bk_scope_type with bk_scope_id.",
	} {
		if !strings.Contains(said, sentence) {
			t.Errorf("the page does not say: %s", sentence)
		}
	}
}

func TestTextIsNotMarkup(t *testing.T) {
	t.Parallel()
	var got bytes.Buffer
	for _, paragraph := range prose("`<b>` is <i>no</i> markup\n\nnor \"this\"") {
		if err := html.Render(&got, paragraph.node); err != nil {
			t.Fatal(err)
		}
	}
	if want := "<p><code>&lt;b&gt;</code> is &lt;i&gt;no&lt;/i&gt; markup</p><p>nor &#34;this&#34;</p>"; got.String() != want {
		t.Errorf("got %s, want %s", got.String(), want)
	}
}
