// Command archive packs a directory reproducibly:
//
//	archive FILE.tar.gz|FILE.zip DIR DATE
//
// All files get the date, and no owner. Only the tool is executable.
package main

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"errors"
	"io/fs"
	"log"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("archive: ")
	if len(os.Args) != 4 {
		log.Fatal("usage: archive FILE.tar.gz|FILE.zip DIR DATE")
	}
	day, err := time.Parse(time.DateOnly, os.Args[3])
	if err != nil {
		log.Fatal(err)
	}
	if err := pack(os.Args[1], os.Args[2], day); err != nil {
		log.Fatal(err)
	}
}

// pack writes the files of dir into file.
func pack(file, dir string, day time.Time) (err error) {
	out, err := os.Create(file)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, out.Close()) }()
	var add func(name string, mode fs.FileMode, data []byte) error
	if strings.HasSuffix(file, ".zip") {
		z := zip.NewWriter(out)
		defer func() { err = errors.Join(err, z.Close()) }()
		add = func(name string, mode fs.FileMode, data []byte) error {
			h := &zip.FileHeader{Name: name, Method: zip.Deflate, Modified: day}
			h.SetMode(mode)
			w, err := z.CreateHeader(h)
			if err == nil {
				_, err = w.Write(data)
			}
			return err
		}
	} else {
		g := gzip.NewWriter(out)
		t := tar.NewWriter(g)
		defer func() { err = errors.Join(err, t.Close(), g.Close()) }()
		add = func(name string, mode fs.FileMode, data []byte) error {
			err := t.WriteHeader(&tar.Header{Name: name, Mode: int64(mode), Size: int64(len(data)), ModTime: day, Format: tar.FormatPAX})
			if err == nil {
				_, err = t.Write(data)
			}
			return err
		}
	}
	return filepath.WalkDir(dir, func(at string, d fs.DirEntry, err error) error { // in lexical order
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, at)
		if err != nil {
			return err
		}
		data, err := os.ReadFile(at)
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o644)
		if name == "leasehold" || name == "leasehold.exe" {
			mode = 0o755
		}
		return add(path.Join(filepath.Base(dir), filepath.ToSlash(name)), mode, data)
	})
}
