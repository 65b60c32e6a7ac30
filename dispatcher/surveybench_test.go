package dispatcher

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/procfleet/procfleet"
	"github.com/procfleet/procfleet/internal/redisconn"
	"github.com/procfleet/procfleet/internal/stores"
	"github.com/procfleet/procfleet/internal/testenv/redistest"
)

// BenchmarkSurveyOf100000Hosts measures how long the first page of the console counts a fleet of
// 200,000 processes in Redis. The floor is reading the same hosts and reports from Redis.
func BenchmarkSurveyOf100000Hosts(b *testing.B) {
	const hosts, batch = 100_000, 1000
	log := logrus.New()
	log.Out = io.Discard
	store, err := stores.OpenRedis(b.Context(), redisconn.Options{URL: redistest.StartQuick(b).URL(), Log: log})
	if err != nil {
		b.Fatal(err)
	}
	defer func() { _ = store.Close() }()
	for first := 0; first < hosts; first += batch {
		fillFleet(b, store, first, first+batch)
	}
	var survey, floor time.Duration
	for b.Loop() {
		begin := time.Now()
		readFleet(b, store, hosts, batch)
		floor += time.Since(begin)

		d, err := New(Config{Log: log}, store, &fakeQueue{}) // its console has no survey yet
		if err != nil {
			b.Fatal(err)
		}
		server := httptest.NewServer(d.Handler())
		begin = time.Now()
		for !strings.Contains(page(b, server.URL+"/ui/"), `id="agents">100`+"\u202f"+"000<") {
			continue // each waits up to a second for the survey
		}
		survey += time.Since(begin)
		server.Close()
	}
	b.ReportMetric(survey.Seconds()/float64(b.N), "s/survey")
	b.ReportMetric(survey.Seconds()/floor.Seconds(), "floors/survey")
}

// readFleet reads the presences and reports of all hosts.
func readFleet(b *testing.B, store Store, hosts, batch int) {
	b.Helper()
	var after procfleet.Host
	for n := 0; n < hosts; n += batch {
		page, err := store.HostPage(b.Context(), after, batch)
		if err != nil || len(page) != batch {
			b.Fatalf("%d hosts after %s: %v", len(page), after, err)
		}
		read := make([]procfleet.Host, len(page))
		for i := range page {
			read[i] = page[i].Host
		}
		if _, err := store.Reported(b.Context(), read); err != nil {
			b.Fatal(err)
		}
		after = read[len(read)-1]
	}
}

func page(b *testing.B, url string) string {
	b.Helper()
	response, err := http.Get(url)
	if err != nil {
		b.Fatal(err)
	}
	defer response.Body.Close()
	text, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		b.Fatalf("%s: %s %v\n%s", url, response.Status, err, text)
	}
	return string(text)
}
