package embedded

// Break makes the store useless, as a failed write does.
func (s *Server) Break() error { return s.running.Load().DisableJetStream() }

// Complaint is what the server says of its health.
func (s *Server) Complaint() string { return s.running.Load().Healthz(nil).Error }

// ID tells one start from another.
func (s *Server) ID() string { return s.running.Load().ID() }

// SyncsAlways reports whether what is confirmed is on disk.
func (s *Server) SyncsAlways() bool { return s.running.Load().JetStreamConfig().SyncAlways }
