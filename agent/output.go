package agent

import (
	"github.com/nats-io/nats.go"

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
		page, err := in.engine.Output(request.Key, request.File, max(0, request.Offset), min(request.Tail, maxTail))
		if err != nil {
			in.refuse(msg, agentproto.RefusedJournal, err.Error())
			return
		}
		in.respond(msg, &agentproto.OutputReply{
			Header: newHeader(agentproto.TypeOutputReply), Instance: in.instance, Incarnation: in.incarnation,
			File: page.File, Data: page.Data, Next: page.Next, More: page.More, Lost: page.Lost,
		})
	})
}
