package main

import (
	"io"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// A tableText is rows for people: columns and no lines, so that it can be cut
// with awk as well.
type tableText struct{ w table.Writer }

func newTable(header ...string) tableText {
	w := table.NewWriter()
	style := table.StyleDefault
	style.Options = table.OptionsNoBordersAndSeparators
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	w.SetStyle(style)
	w.SuppressTrailingSpaces()
	t := tableText{w}
	row := table.Row{}
	for _, h := range header {
		row = append(row, h)
	}
	w.AppendHeader(row)
	return t
}

// row adds a row; an empty cell shows as "-".
func (t tableText) row(cells ...string) {
	row := table.Row{}
	for _, c := range cells {
		if c == "" {
			c = "-"
		}
		row = append(row, safeText([]byte(c)))
	}
	t.w.AppendRow(row)
}

func (t tableText) print(w io.Writer) error {
	_, err := io.WriteString(w, t.w.Render()+"\n")
	return err
}
