// Run a library once: run_library FOLDER [FILE...], as run_library.c does, in Go.
//
//	export CGO_CFLAGS=-I$PWD/deploy/c CGO_LDFLAGS="-L$PWD/build -Wl,-rpath,$PWD/build"
//	go build deploy/c/examples/run_library.go
package main

/*
#cgo LDFLAGS: -ltuner
#include <stdlib.h>
#include <tuner.h>
*/
import "C"

import (
	"fmt"
	"log"
	"os"
	"runtime"
	"strings"
	"unsafe"
)

// Describe the outputs of a run on files, or on zeros where there are none.
func run(folder string, files []string) (lines []string, err error) {
	// tuner_error tells of this thread, and Go may go on in another one after each call.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	path := C.CString(folder)
	defer C.free(unsafe.Pointer(path))
	library := C.tuner_open(path, 0)
	if library == nil {
		return nil, fmt.Errorf("%s", C.GoString(C.tuner_error()))
	}
	defer C.tuner_close(library)
	inputs := make([]C.tuner_tensor, C.tuner_n_inputs(library)+1) // so that there is a first one
	n_inputs := len(inputs) - 1
	for number := range inputs[:n_inputs] {
		input := &inputs[number]
		*input = *C.tuner_input(library, 0, C.size_t(number))
		content := make([]byte, input.n_bytes)
		if number < len(files) {
			if content, err = os.ReadFile(files[number]); err != nil {
				return nil, err
			}
		}
		// Memory of C: a structure that C is given must not point to memory of Go.
		input.data = C.CBytes(content)
		defer C.free(input.data)
		input.n_bytes = C.size_t(len(content)) // which the library checks
	}
	if C.tuner_run(library, &inputs[0], C.size_t(n_inputs)) != 0 {
		return nil, fmt.Errorf("%s", C.GoString(C.tuner_error()))
	}
	for number := C.size_t(0); number < C.tuner_n_outputs(library); number++ {
		output := C.tuner_output(library, number)
		shape := fmt.Sprint(unsafe.Slice((*int64)(output.shape), output.rank))
		shape = strings.ReplaceAll(strings.Trim(shape, "[]"), " ", "x")
		line := fmt.Sprint(C.GoString(output.name), " ", C.GoString(output.dtype), " ", shape)
		if C.GoString(output.dtype) == "float32" {
			numbers := unsafe.Slice((*float32)(output.data), output.n_bytes/4)
			line += ": " + strings.Trim(fmt.Sprint(numbers[:min(len(numbers), 8)]), "[]")
		}
		lines = append(lines, line)
	}
	return lines, nil
}

func min(a, b int) int {
	if a < b {
		return a
	}
	return b
}

func main() {
	log.SetFlags(0)
	log.SetPrefix("run_library: ")
	if len(os.Args) < 2 {
		log.Fatal("usage: run_library FOLDER [FILE...]")
	}
	lines, err := run(os.Args[1], os.Args[2:])
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(strings.Join(lines, "\n"))
}
