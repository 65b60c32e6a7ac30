package dialect

import "github.com/procfleet/procfleet"

// The scope of a request is what its caller must be authorized for: a business,
// "" for none, or a business and targets.

// InBusiness returns the business. A business of an account other than the
// default one is named by its namespace, which tells the businesses of several
// suppliers apart.
func (q *ProcessPage) InBusiness() string                       { return q.Business }
func (q *TemplateEdits) InBusiness() string                     { return q.Business.Namespace() }
func (q *TemplateQuery) InBusiness() string                     { return q.Business.Namespace() }
func (q *TemplateSearch) InBusiness() string                    { return q.Business.Namespace() }
func (q *NamedTemplates) InBusiness() string                    { return q.Business.Namespace() }
func (q *DriftQuery) InBusiness() string                        { return q.Business.Namespace() }
func (q *TopologyChange) InBusiness() string                    { return q.Business.Namespace() }
func (q *TopologyEdit) InBusiness() string                      { return q.Business.Namespace() }
func (q *TopologyQuery) InBusiness() string                     { return q.Business.Namespace() }
func (q *Registering) OnTargets() (string, []procfleet.Target)  { return q.Business, q.Targets }
func (q *Grouping) OnTargets() (string, []procfleet.Target)     { return q.Business, q.Targets }
func (q *GroupQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *ProcessQuery) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *AgentQuery) OnTargets() (string, []procfleet.Target)   { return q.Business, q.Targets }
func (q *AgentBinding) OnTargets() (string, []procfleet.Target) { return q.Business, q.Targets }
func (q *Freezing) OnTargets() (string, []procfleet.Target)     { return q.Business, q.Targets }
