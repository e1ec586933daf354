package e2e

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"

	"github.com/pillarbox/pillarbox/services/suite/all"
	"github.com/pillarbox/pillarbox/shared/database/databasetest/postgres"
)

// Binaries are the programs of a cluster.
type Binaries struct{ Dir string }

// Build builds the programs and a NATS server from this module into dir, with
// build tags.
func Build(ctx context.Context, dir, tags string) (Binaries, error) {
	programs := []string{"github.com/nats-io/nats-server/v2"}
	for _, name := range append(all.Names(), "suite") {
		programs = append(programs, "github.com/pillarbox/pillarbox/services/"+name)
	}
	args := append([]string{"build", "-tags", tags, "-o", dir + string(filepath.Separator)}, programs...)
	out, err := exec.CommandContext(ctx, "go", args...).CombinedOutput()
	if err != nil {
		return Binaries{}, fmt.Errorf("build: %w: %s", err, out)
	}
	return Binaries{dir}, nil
}

func (b Binaries) path(name string) string { return filepath.Join(b.Dir, name) }

// ClusterConfig says what a cluster consists of.
type ClusterConfig struct {
	Dir      string // everything of the cluster lies here
	Binaries Binaries
	Replicas int // of every service
	Env      []string
	// Subscriber is one more user of NATS, as an operator adds one for a subscriber of his own; empty: none.
	Subscriber string
	// Proxied puts a Proxy between each service and each server.
	Proxied bool
	// PostgresDir and NATSDir are where the servers keep their files; empty: somewhere in Dir, or a temporary folder.
	PostgresDir, NATSDir string
	// PostgresSettings are further settings of that server.
	PostgresSettings map[string]string
}

// Cluster is the line as people deploy it: PostgreSQL, a NATS server and the
// services, each a real process, with the roles, users and permissions of the
// shipped configuration.
type Cluster struct {
	Config   ClusterConfig
	Postgres *postgres.Server
	NATS     *Process
	Services map[string][]*Process
	line     Line
	database string
	natsPort int
	natsHTTP int // of the server's monitor
	pgPort   string
	proxies  map[string]*Proxy // by between(service, server)
}

// password is every role's and user's; the cluster is reachable from loopback only.
const password = "e2e"

// deploy is the folder of the shipped configuration.
func deploy() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Join(filepath.Dir(file), "..", "..", "deploy")
}

// NewCluster lays out a cluster and starts its servers, but no service.
func NewCluster(ctx context.Context, c ClusterConfig) (_ *Cluster, err error) {
	cluster := &Cluster{Config: c, Services: map[string][]*Process{}, database: "pillarbox", proxies: map[string]*Proxy{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, cluster.Close())
		}
	}()
	if cluster.Postgres, err = postgres.Start(ctx, postgres.Config{Dir: c.PostgresDir, Durable: true, Settings: c.PostgresSettings}); err != nil {
		return nil, err
	}
	if err := cluster.initPostgres(ctx); err != nil {
		return nil, err
	}
	if err := cluster.startNATS(ctx); err != nil {
		return nil, err
	}
	if err := cluster.startProxies(); err != nil {
		return nil, err
	}
	return cluster, cluster.layOut()
}

// startProxies puts the proxies in between, when the cluster has some.
func (c *Cluster) startProxies() error {
	if !c.Config.Proxied {
		return nil
	}
	for _, service := range all.Names() {
		for server, port := range map[string]string{"postgres": c.pgPort, "nats": fmt.Sprint(c.natsPort)} {
			p, err := NewProxy(port)
			if err != nil {
				return err
			}
			c.proxies[between(service, server)] = p
		}
	}
	return nil
}

func between(service, server string) string { return service + "-" + server }

// Between is the proxy between a service (all replicas) and a server, "postgres" or "nats".
func (c *Cluster) Between(service, server string) *Proxy { return c.proxies[between(service, server)] }

// through is the address with the port of the proxy in between, where there is one.
func (c *Cluster) through(service, server, address string) string {
	p := c.Between(service, server)
	if p == nil {
		return address
	}
	direct := map[string]string{"postgres": c.pgPort, "nats": fmt.Sprint(c.natsPort)}[server]
	return strings.Replace(address, "127.0.0.1:"+direct, fmt.Sprintf("127.0.0.1:%d", p.Port()), 1)
}

// initPostgres runs the shipped initialisation, as the database image would.
func (c *Cluster) initPostgres(ctx context.Context) error {
	server, err := url.Parse(c.Postgres.URL())
	if err != nil {
		return err
	}
	c.pgPort = server.Port()
	run := func(name string, args ...string) error {
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Env = append(os.Environ(), "POSTGRES_USER=postgres", "POSTGRES_DB="+c.database,
			"PGHOST="+server.Hostname(), "PGPORT="+c.pgPort)
		for _, service := range all.Names() {
			cmd.Env = append(cmd.Env, "PILLARBOX_"+strings.ToUpper(service)+"_DB_PASSWORD="+password)
		}
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("initialise PostgreSQL: %w: %s", err, out)
		}
		return nil
	}
	if err := run("psql", "-q", "-U", "postgres", "-d", "postgres", "-c", "CREATE DATABASE "+c.database); err != nil {
		return err
	}
	return run("bash", filepath.Join(deploy(), "postgres-init.sh"))
}

// startNATS runs the server with the shipped configuration on a port and a
// folder of our own.
func (c *Cluster) startNATS(ctx context.Context) (err error) {
	if c.natsPort, err = FreePort(); err != nil {
		return err
	}
	if c.natsHTTP, err = FreePort(); err != nil {
		return err
	}
	config, err := c.natsConfig()
	if err != nil {
		return err
	}
	c.NATS = &Process{
		Name: "nats", Path: c.Config.Binaries.path("nats-server"),
		Args: []string{"-c", config, "-a", "127.0.0.1", "-p", fmt.Sprint(c.natsPort), "-m", fmt.Sprint(c.natsHTTP)},
		Env:  []string{"NATS_STORE_DIR=" + c.NATSStore(), "NATS_OPERATOR_PASSWORD=" + password},
		Log:  filepath.Join(c.Config.Dir, "nats.log"), Ready: Dialable(c.natsPort),
	}
	for _, service := range all.Names() {
		c.NATS.Env = append(c.NATS.Env, "NATS_"+strings.ToUpper(service)+"_PASSWORD="+password)
	}
	return c.NATS.Run(ctx)
}

// natsConfig is the shipped configuration, with the subscriber's user when there is one.
func (c *Cluster) natsConfig() (string, error) {
	shipped := filepath.Join(deploy(), "nats.conf")
	name := c.Config.Subscriber
	if name == "" {
		return shipped, nil
	}
	text, err := os.ReadFile(shipped)
	if err != nil {
		return "", err
	}
	const end = "\n  ]\n"
	line := fmt.Sprintf("\n    {user: %s, password: %s, permissions: {publish: $READ, subscribe: [\"_INBOX.pillarbox-%s.>\", \"pillarbox.lease.%s\"]}}",
		name, password, name, name)
	if strings.Count(string(text), end) != 1 {
		return "", errors.New("nats.conf has no end of the users where one was expected")
	}
	config := filepath.Join(c.Config.Dir, "nats.conf")
	return config, os.WriteFile(config, []byte(strings.Replace(string(text), end, line+end, 1)), 0o600)
}

// NATSStore is the folder of the broker's files.
func (c *Cluster) NATSStore() string {
	if c.Config.NATSDir != "" {
		return c.Config.NATSDir
	}
	return filepath.Join(c.Config.Dir, "nats")
}

// Pickup is the folder of the mails.
func (c *Cluster) Pickup() string { return filepath.Join(c.Config.Dir, "pickup") }

// layOut describes the services' processes.
func (c *Cluster) layOut() error {
	c.line.Pickup = c.Pickup()
	c.line.Publisher = c.NATSURL("store")
	if err := os.MkdirAll(c.Pickup(), 0o755); err != nil {
		return err
	}
	for _, name := range all.Names() {
		for i := range c.Config.Replicas {
			if err := c.addReplica(name, i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (c *Cluster) addReplica(name string, i int) error {
	api, err := FreePort()
	if err != nil {
		return err
	}
	admin, err := FreePort()
	if err != nil {
		return err
	}
	prefix := "PILLARBOX_" + strings.ToUpper(name)
	adminURL := fmt.Sprintf("http://127.0.0.1:%d", admin)
	p := &Process{
		Name: fmt.Sprintf("%s-%d", name, i), Path: c.Config.Binaries.path(name),
		Log: filepath.Join(c.Config.Dir, fmt.Sprintf("%s-%d.log", name, i)), Ready: ReadyAt(adminURL),
		Env: append([]string{
			prefix + "_DATABASE_URL=" + c.through(name, "postgres", c.DatabaseURL(name)),
			prefix + "_MIGRATE_URL=" + c.through(name, "postgres", c.DatabaseURL(name+"_owner")),
			prefix + "_NATS_URL=" + c.through(name, "nats", c.NATSURL(name)),
			fmt.Sprintf("%s_ADMIN=127.0.0.1:%d", prefix, admin), "PILLARBOX_LOG_LEVEL=debug",
		}, c.Config.Env...),
	}
	if name == "mailer" {
		p.Env = append(p.Env, prefix+"_PICKUP="+c.Pickup())
	} else {
		p.Env = append(p.Env, fmt.Sprintf("%s_HTTP=127.0.0.1:%d", prefix, api))
	}
	base := fmt.Sprintf("http://127.0.0.1:%d", api)
	switch name {
	case "store":
		c.line.Stores = append(c.line.Stores, base)
	case "audit":
		c.line.Audit = base
	case "loyalty":
		c.line.Loyalty = base
	}
	c.line.Admins = append(c.line.Admins, adminURL)
	c.Services[name] = append(c.Services[name], p)
	return nil
}

// DatabaseURL is the database under a role.
func (c *Cluster) DatabaseURL(role string) string {
	return fmt.Sprintf("postgres://%s:%s@127.0.0.1:%s/%s?sslmode=disable", role, password, c.pgPort, c.database)
}

// MonitorURL is the address of the NATS server's own figures.
func (c *Cluster) MonitorURL() string { return fmt.Sprintf("http://127.0.0.1:%d", c.natsHTTP) }

// NATSURL is the broker under a user.
func (c *Cluster) NATSURL(user string) string {
	return fmt.Sprintf("nats://%s:%s@127.0.0.1:%d", user, password, c.natsPort)
}

// SQL runs a statement in the services' database as the superuser.
func (c *Cluster) SQL(ctx context.Context, statement string) error {
	out, err := exec.CommandContext(ctx, "psql", "-qAt", "-d", c.DatabaseURL("postgres"), "-c", statement).CombinedOutput()
	if err != nil {
		return fmt.Errorf("psql: %w: %s", err, out)
	}
	return nil
}

// Start starts all replicas of all services at once and waits until all are
// ready.
func (c *Cluster) Start(ctx context.Context) error {
	for _, p := range c.All() {
		if err := p.Start(); err != nil {
			return err
		}
	}
	for _, p := range c.All() {
		if err := p.WaitReady(ctx); err != nil {
			return err
		}
	}
	return nil
}

// All are the services' processes.
func (c *Cluster) All() []*Process {
	var processes []*Process
	for _, name := range all.Names() {
		processes = append(processes, c.Services[name]...)
	}
	return processes
}

// Line is what scenarios need.
func (c *Cluster) Line() Line { return c.line }

// Stop stops the services in order, as an operator would.
func (c *Cluster) Stop() error {
	var errs []error
	for _, p := range c.All() {
		errs = append(errs, p.Stop())
	}
	return errors.Join(errs...)
}

// Close stops what still runs.
func (c *Cluster) Close() error {
	var errs []error
	for _, p := range c.All() {
		errs = append(errs, p.Kill())
	}
	for _, p := range c.proxies {
		errs = append(errs, p.Close())
	}
	if c.NATS != nil {
		errs = append(errs, c.NATS.Kill())
	}
	if c.Postgres != nil {
		errs = append(errs, c.Postgres.Close())
	}
	return errors.Join(errs...)
}
