package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/google/uuid"

	"github.com/pillarbox/pillarbox/services/mailer/mailersvc"
	"github.com/pillarbox/pillarbox/shared/broker"
	"github.com/pillarbox/pillarbox/shared/events"
	"github.com/pillarbox/pillarbox/shared/logs"
)

// The article's figures: the same number of mails of the same size, taken from a queue and written to
// a directory by one processor and by ten.
const articleOne, articleTen = 47.3, 16.2 // seconds

const headlineLimit = 10 * time.Minute // of one run

// Headline is "suite bench headline".
type Headline struct {
	Mails int    `name:"mails" default:"1000" help:"Mails that wait (1 to 20000)."`
	Size  int    `name:"size" default:"524288" help:"Size of a mail's body in bytes (1 to 700000)."`
	Dir   string `name:"dir" placeholder:"FOLDER" help:"Where the scratch folder is made: on the disk to be measured (default: that for temporary files)."`
	JSON  bool   `name:"json" help:"Print one object instead of a table."`

	Out io.Writer `kong:"-"` // default standard output
}

// Validate is called by the command line.
func (h *Headline) Validate() error {
	if h.Mails < 1 || h.Mails > 20_000 || h.Size < 1 || h.Size > 700_000 {
		return errors.New("--mails must be 1 to 20000 and --size 1 to 700000")
	}
	return nil
}

// Result is what Headline measured, in seconds.
type Result struct {
	Mails       int     `json:"mails"`
	Size        int     `json:"size"`
	Cores       int     `json:"cores"`
	FilesOnly   float64 `json:"files_only_s"` // ten goroutines: write, fsync, rename; the folder's fsync included
	One         float64 `json:"one_processor_s"`
	Ten         float64 `json:"ten_processors_s"`
	TenToFiles  float64 `json:"ten_to_files_only"`
	PeakRSSInMB float64 `json:"peak_rss_mb"`
}

// Run measures and prints.
func (h *Headline) Run() error {
	ctx, stop := interruptible()
	defer stop()
	if h.Out == nil {
		h.Out = os.Stdout
	}
	r, err := h.measure(ctx)
	if err != nil {
		return err
	}
	if h.JSON {
		return json.NewEncoder(h.Out).Encode(r)
	}
	return r.print(h.Out)
}

func (r Result) print(out io.Writer) error {
	w := tabwriter.NewWriter(out, 2, 0, 2, ' ', 0)
	fmt.Fprintf(w, "%d mails of %d bytes, quoted-printable, fsynced, on %d cores\n\n", r.Mails, r.Size, r.Cores)
	fmt.Fprintln(w, "processors\tthe article\tPillarbox\tto the article\tto files only")
	fmt.Fprintf(w, "1\t%.1f s\t%.1f s\t%.2f\t%.2f\n", articleOne, r.One, r.One/articleOne, r.One/r.FilesOnly)
	fmt.Fprintf(w, "10\t%.1f s\t%.1f s\t%.2f\t%.2f\n", articleTen, r.Ten, r.Ten/articleTen, r.TenToFiles)
	fmt.Fprintf(w, "\nfiles only, 10 at a time: %.2f s; peak memory %.0f MB\n", r.FilesOnly, r.PeakRSSInMB)
	return w.Flush()
}

func (h *Headline) measure(ctx context.Context) (r Result, err error) {
	r = Result{Mails: h.Mails, Size: h.Size, Cores: runtime.NumCPU()}
	mail, one, err := h.drain(ctx, 1)
	if err != nil {
		return r, err
	}
	_, ten, err := h.drain(ctx, 10)
	if err != nil {
		return r, err
	}
	files, err := h.filesOnly(mail)
	if err != nil {
		return r, err
	}
	r.FilesOnly, r.One, r.Ten = files.Seconds(), one.Seconds(), ten.Seconds()
	r.TenToFiles = r.Ten / r.FilesOnly
	r.PeakRSSInMB, err = Memory("self", "VmHWM") // broker, mailer and measurement together
	return r, err
}

// drain lets a mailer with so many processors write what waits, and returns one of the mails too.
func (h *Headline) drain(ctx context.Context, processors int) (mail []byte, took time.Duration, err error) {
	s, err := newScratch(ctx, h.Dir, int64(h.Mails)*int64(h.Size+4096)*2+(1<<30))
	if err != nil {
		return nil, 0, err
	}
	defer s.close()
	if err := h.fill(ctx, s.conn); err != nil {
		return nil, 0, err
	}
	db, err := s.database(ctx, mailersvc.Name)
	if err != nil {
		return nil, 0, err
	}
	defer db.Close()
	pickup := filepath.Join(s.dir, "pickup")
	mailer, err := mailersvc.New(mailersvc.Config{Pickup: pickup, Workers: processors, Transactions: min(processors, 2)},
		mailersvc.Deps{DB: db, Broker: s.conn, Log: logs.Discard()})
	if err != nil {
		return nil, 0, err
	}
	running, stop := context.WithCancel(ctx)
	ended := make(chan error, 1)
	start := time.Now()
	go func() { ended <- mailer.Run(running) }()
	var names []string
	err = Until(ctx, 10*time.Millisecond, headlineLimit, func() (bool, error) {
		names, err = filepath.Glob(filepath.Join(pickup, "*.eml"))
		return len(names) >= h.Mails, err
	})
	took = time.Since(start)
	stop()
	if err := errors.Join(err, <-ended); err != nil {
		return nil, 0, err
	}
	mail, err = os.ReadFile(names[0])
	return mail, took, err
}

// fill puts the mails into the queue.
func (h *Headline) fill(ctx context.Context, conn *broker.Conn) error {
	p := broker.NewPublisher(conn, broker.PublisherConfig{Timeout: 10 * time.Second})
	body := text(h.Size)
	batch := max(1, (3<<20)/(h.Size+2048)) // of a few megabytes
	for left := h.Mails; left > 0; left -= batch {
		messages := make([]*message.Message, min(batch, left))
		for i := range messages {
			e, err := events.NewMailRequested(uuid.NewString(), "/bench", time.Now(), events.MailRequest{
				Sender: events.Mailbox{Email: "shop@example.org"}, Recipients: []events.Mailbox{{Email: "ada@example.org"}},
				Subject: "Your order", HTML: body,
			})
			if err != nil {
				return err
			}
			raw, err := e.Encode()
			if err != nil {
				return err
			}
			messages[i] = message.NewMessage(e.ID, raw)
		}
		if _, err := p.PublishAtomic(ctx, events.TopicOrders, messages); err != nil {
			return err
		}
	}
	return p.Close()
}

// text is a body like that of a mail: lines of words and tags, some letters beyond ASCII.
func text(size int) string {
	const line = "<p style=\"margin: 0\">Grüne Tasse, 0.3 l, à 7.25 € = 29.00 €; delivered on Tuesday</p>\n"
	body := strings.Repeat(line, size/len(line)+1)[:size]
	return strings.ToValidUTF8(body, "")
}

// filesOnly writes such mails with nothing around them: what the disk allows.
func (h *Headline) filesOnly(mail []byte) (time.Duration, error) {
	dir, err := os.MkdirTemp(h.Dir, "pillarbox-bench-")
	if err != nil {
		return 0, err
	}
	defer os.RemoveAll(dir)
	start := time.Now()
	if err := WriteFiles(dir, h.Mails, mail); err != nil {
		return 0, err
	}
	folder, err := os.Open(dir)
	if err == nil {
		err = errors.Join(folder.Sync(), folder.Close())
	}
	return time.Since(start), err
}
