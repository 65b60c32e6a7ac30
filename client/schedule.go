package client

import (
	"context"
	"net/http"
	"net/url"

	v1 "github.com/procfleet/procfleet/api/v1"
)

// SetSchedule stores a schedule of a business or namespace, for example "2", or replaces the one of this
// name, and returns it.
func (c *Client) SetSchedule(ctx context.Context, namespace, name string, s ScheduleRequest) (stored Schedule, err error) {
	return stored, c.send(ctx, http.MethodPut, schedulePath(namespace, name), s, &stored)
}

// Schedules returns the schedules of a business or namespace, sorted by name.
func (c *Client) Schedules(ctx context.Context, namespace string) ([]Schedule, error) {
	var answer v1.Schedules
	return answer.Schedules, c.do(ctx, get("/v1/schedules/"+url.PathEscape(namespace)), &answer)
}

// RemoveSchedule removes a schedule and reports whether it existed. Its tasks go on.
func (c *Client) RemoveSchedule(ctx context.Context, namespace, name string) (existed bool, err error) {
	var answer v1.ScheduleRemoved
	err = c.send(ctx, http.MethodDelete, schedulePath(namespace, name), nil, &answer)
	return answer.Removed, err
}

func schedulePath(namespace, name string) string {
	return "/v1/schedules/" + url.PathEscape(namespace) + "/" + url.PathEscape(name)
}
