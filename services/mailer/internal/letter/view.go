package letter

import (
	"bytes"
	"embed"
	"fmt"
	html "html/template"
	"path"
	"strings"
	text "text/template"
	"time"

	"github.com/pillarbox/pillarbox/shared/events"
)

// Each folder below templates is a language; each has the three parts of each
// of the three templates, and parts.html and parts.txt, which they share.
//
//go:embed templates
var templates embed.FS

// fallback is the language of customers whose own one has no templates.
const fallback = "en"

type language struct {
	name string
	text *text.Template // the subjects and the plain bodies
	html *html.Template
}

// parts of a mail as rendered.
type parts struct {
	Language, Subject, Text, HTML string
}

// view is what templates see: clean single lines only.
type view struct {
	Language  string
	ID, Short string
	Reference string
	Name      string
	Items     []viewItem
	Total     string
	PlacedAt  time.Time
}

type viewItem struct {
	SKU, Name   string
	Quantity    int64
	Price, Line string
}

func parseLanguages() (map[string]language, error) {
	folders, err := templates.ReadDir("templates")
	if err != nil {
		return nil, fmt.Errorf("read templates: %w", err)
	}
	languages := make(map[string]language, len(folders))
	for _, folder := range folders {
		glob := path.Join("templates", folder.Name())
		plain, err := text.New("").Option("missingkey=error").ParseFS(templates, glob+"/*.txt")
		if err != nil {
			return nil, fmt.Errorf("parse text templates: %w", err)
		}
		markup, err := html.New("").Option("missingkey=error").ParseFS(templates, glob+"/*.html")
		if err != nil {
			return nil, fmt.Errorf("parse html templates: %w", err)
		}
		languages[folder.Name()] = language{name: folder.Name(), text: plain, html: markup}
	}
	return languages, nil
}

// language picks the templates for a locale: de-AT, then de, then English.
func (r *Renderer) language(locale string) language {
	tag := strings.ToLower(strings.ReplaceAll(locale, "_", "-"))
	for found := true; found; tag, _, found = cutLast(tag, "-") {
		if l, ok := r.languages[tag]; ok {
			return l
		}
	}
	return r.languages[fallback]
}

// render makes the subject and both bodies.
func (r *Renderer) render(template string, o events.Order) (parts, error) {
	l := r.language(o.Customer.Locale)
	v, err := newView(l.name, o)
	if err != nil {
		return parts{}, err
	}
	out := parts{Language: l.name}
	var subject, plain, markup bytes.Buffer
	if err := l.text.ExecuteTemplate(&subject, template+".subject.txt", v); err != nil {
		return parts{}, fmt.Errorf("render subject: %w", err)
	}
	if err := l.text.ExecuteTemplate(&plain, template+".txt", v); err != nil {
		return parts{}, fmt.Errorf("render text: %w", err)
	}
	if err := l.html.ExecuteTemplate(&markup, template+".html", v); err != nil {
		return parts{}, fmt.Errorf("render html: %w", err)
	}
	out.Subject, out.Text, out.HTML = headerText(clean(subject.String())), plain.String(), markup.String()
	return out, nil
}

// localeFor is the customer's locale where it is one of the language that the
// letter is written in: a German amount in an English sentence is misread.
func localeFor(language, locale string) string {
	own, _, _ := strings.Cut(strings.ReplaceAll(locale, "_", "-"), "-")
	if !strings.EqualFold(own, language) {
		return language
	}
	return locale
}

func newView(language string, o events.Order) (view, error) {
	m := newMoney(o.Currency, localeFor(language, o.Customer.Locale))
	total, err := m.show(o.Total)
	if err != nil {
		return view{}, fmt.Errorf("total: %w", err)
	}
	reference := clean(o.Reference)
	v := view{
		Language: language, ID: clean(o.ID), Short: short(clean(o.ID), reference), Reference: reference,
		Name: clean(o.Customer.Name), Total: total, PlacedAt: o.PlacedAt.UTC(),
	}
	for i, item := range o.Items {
		price, err := m.show(item.UnitPrice)
		if err != nil {
			return view{}, fmt.Errorf("item %d: %w", i, err)
		}
		line, err := m.line(item)
		if err != nil {
			return view{}, fmt.Errorf("item %d: %w", i, err)
		}
		sku, name := clean(item.SKU), clean(item.Name)
		if name == "" {
			name, sku = sku, ""
		}
		v.Items = append(v.Items, viewItem{SKU: sku, Name: name, Quantity: item.Quantity, Price: price, Line: line})
	}
	return v, nil
}
