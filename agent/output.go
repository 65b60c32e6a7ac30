package agent

import (
	"time"

	"github.com/nats-io/nats.go"

	"github.com/procfleet/procfleet/agent/operate"
	"github.com/procfleet/procfleet/agentproto"
)

// maxTail is the maximum number of lines of a tail. A page ends it earlier.
const maxTail = 10_000

// output replies with a part of the output of a process. It reads in a goroutine, since the
// disk may be slow.
func (in *intake) output(msg *nats.Msg) {
	var request agentproto.Output
	if err := agentproto.Decode(msg.Data, agentproto.TypeOutput, &request); err != nil {
		in.refuse(msg, agentproto.RefusedUndecodable, err.Error())
		return
	}
	if refused, why := in.misaddressed(request.Host, ""); refused != "" {
		in.refuse(msg, refused, why)
		return
	}
	in.replies.Go(func() {
		page, err := in.engine.Output(operate.OutputQuery{
			Key: request.Key, File: request.File, Offset: max(0, request.Offset), Lines: min(request.Tail, maxTail),
			Age: time.Duration(request.AgeMS) * time.Millisecond, Log: request.LogPath,
		})
		if err != nil {
			in.refuse(msg, agentproto.RefusedJournal, err.Error())
			return
		}
		in.respond(msg, &agentproto.OutputReply{
			Header: newHeader(agentproto.TypeOutputReply), Instance: in.instance, Incarnation: in.incarnation,
			File: page.File, Data: page.Data, Next: page.Next, More: page.More, Lost: page.Lost, Message: page.Problem,
		})
	})
}
