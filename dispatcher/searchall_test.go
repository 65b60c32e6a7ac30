package dispatcher

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/procfleet/procfleet/catalog"
	"github.com/procfleet/procfleet/taskstore"
)

// catalogued defines n processes in business 2, with the names p0000, p0001 and so on.
func catalogued(t *testing.T, store catalog.Templates, n int) {
	t.Helper()
	edits := make([]catalog.Edit, n)
	for i := range edits {
		edits[i].Set = map[catalog.Attribute]catalog.Value{catalog.AttrName: catalog.Text(fmt.Sprintf("p%04d", i))}
	}
	for some := range slices.Chunk(edits, catalog.MaxEdits) {
		if _, err := store.EditTemplates(t.Context(), biz2, some); err != nil {
			t.Fatal(err)
		}
	}
}

// A search without a limit returns all processes, of more than one page of the store.
func TestASearchWithoutALimitAnswersEveryProcess(t *testing.T) {
	t.Parallel()
	const all = 2*catalog.MaxTemplatePage + 100
	store := openStore(t)
	catalogued(t, store, all)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	for body, want := range map[string]struct{ first, rows, count int }{
		`{}`:                      {0, all, all},
		`{"page":{"start":2050}}`: {2050, 50, all},
		`{"page":{"start":2090},"fields":["bk_process_name"]}`:                       {2090, 10, all},
		`{"page":{"start":9000}}`:                                                    {0, 0, all},
		`{"page":{"limit":200}}`:                                                     {0, 200, all},
		`{"page":{"start":3,"limit":2}}`:                                             {3, 2, all},
		`{"page":{"sort":"bk_process_name","limit":0},"fields":["bk_process_name"]}`: {0, all, all},
		`{"page":{},"condition":{"bk_process_name":"p00"}}`:                          {0, 100, 100},
		`{"page":null,"condition":{"bk_process_name":"p00"}}`:                        {0, 100, 100},
		`{"page":{"limit":0,"start":30},"condition":{"bk_process_name":"p00"}}`:      {30, 70, 100},
		`{"condition":{"bk_process_name":"p00"}}`:                                    {0, 100, 100},
	} {
		a := d.cmdb(200, 0, http.MethodPost, "search/0/2", body)
		var found struct {
			Data struct {
				Count int
				Info  []struct {
					Name string `json:"bk_process_name"`
				}
			}
		}
		if err := json.Unmarshal([]byte(a.text), &found); err != nil {
			t.Fatalf("%s: %v", body, err)
		}
		if found.Data.Count != want.count || len(found.Data.Info) != want.rows {
			t.Errorf("%s: %d rows of %d, want %d of %d", body, len(found.Data.Info), found.Data.Count, want.rows, want.count)
			continue
		}
		for i, row := range found.Data.Info {
			if name := fmt.Sprintf("p%04d", want.first+i); row.Name != name {
				t.Fatalf("%s: row %d is %s, want %s", body, i, row.Name, name)
			}
		}
	}
}

// changingStore calls a function before each read of a part, except the first.
type changingStore struct {
	Store
	reads  int
	before func(ids []int64) error
}

func (s *changingStore) Templates(ctx context.Context, b catalog.Business, ids []int64) ([]*catalog.Template, error) {
	if s.reads++; s.reads > 1 {
		if err := s.before(ids); err != nil {
			return nil, err
		}
	}
	return s.Store.Templates(ctx, b, ids)
}

func TestASearchForEverythingMissesNothingButWhatIsDeletedMeanwhile(t *testing.T) {
	t.Parallel()
	const all = catalog.MaxTemplatePage + 10
	store := &changingStore{Store: openStore(t)}
	catalogued(t, store.Store, all)
	store.before = func(ids []int64) error {
		_, err := store.DeleteTemplate(t.Context(), biz2, ids[0])
		if err == nil { // what moves forward is not passed over
			_, err = store.DeleteTemplate(t.Context(), biz2, 1)
		}
		return err
	}
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	a := d.cmdb(200, 0, http.MethodPost, "search/0/2", `{"fields":["bk_process_name"]}`)
	if rows := strings.Count(a.text, "bk_process_name"); rows != all-1 {
		t.Errorf("%d rows, want %d", rows, all-1)
	}
}

func TestASearchForEverythingThatFailsInTheMiddleIsCutOff(t *testing.T) {
	t.Parallel()
	store := &changingStore{Store: openStore(t), before: func([]int64) error { return taskstore.ErrUnavailable }}
	catalogued(t, store.Store, catalog.MaxTemplatePage+1)
	d := startServer(t, testConfig(t), store, &fakeQueue{})
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, d.url+"/api/v3/proc/search/0/2", strings.NewReader("{}"))
	if err != nil {
		t.Fatal(err)
	}
	header := cmdbHeaders()
	r.Header.Set(header[0], header[1])
	r.Header.Set(header[2], header[3])
	answer, err := http.DefaultClient.Do(r)
	if err == nil {
		_, err = io.ReadAll(answer.Body)
		_ = answer.Body.Close()
	}
	if err == nil {
		t.Error("an answer without its end looks like a whole one")
	}
}
