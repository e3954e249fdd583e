// Run a library once: run_library FOLDER [FILE...], as run_library.c does, in Rust.
//
//   rustc -O deploy/c/examples/run_library.rs -L build -l tuner -C link-arg=-Wl,-rpath,$PWD/build
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::{env, fs, process, ptr, slice};

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    name: *const c_char,
    dtype: *const c_char,
    rank: usize,
    shape: *const i64,
    data: *const c_void,
    n_bytes: usize,
}

#[repr(C)]
struct RawLibrary {
    _private: [u8; 0],
}

extern "C" {
    fn tuner_open(folder: *const c_char, n_threads: c_int) -> *mut RawLibrary;
    fn tuner_close(library: *mut RawLibrary);
    fn tuner_n_inputs(library: *const RawLibrary) -> usize;
    fn tuner_n_outputs(library: *const RawLibrary) -> usize;
    fn tuner_input(library: *const RawLibrary, program: usize, number: usize) -> *const Tensor;
    fn tuner_output(library: *const RawLibrary, number: usize) -> *const Tensor;
    fn tuner_run(library: *mut RawLibrary, inputs: *const Tensor, n_inputs: usize) -> c_int;
    fn tuner_error() -> *const c_char;
}

fn text(pointer: *const c_char) -> String {
    unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned()
}

/// A library, which is closed when it is dropped. It serves one call at a time.
struct Library(*mut RawLibrary);

impl Library {
    fn open(folder: &str) -> Result<Library, String> {
        let folder = CString::new(folder).map_err(|error| error.to_string())?;
        let library = unsafe { tuner_open(folder.as_ptr(), 0) };
        if library.is_null() { Err(text(unsafe { tuner_error() })) } else { Ok(Library(library)) }
    }

    /// Descriptions of the inputs, without data.
    fn inputs(&self) -> Vec<Tensor> {
        let numbers = 0..unsafe { tuner_n_inputs(self.0) };
        numbers.map(|number| unsafe { *tuner_input(self.0, 0, number) }).collect()
    }

    /// The outputs, whose memory is valid until the next run.
    fn run(&mut self, inputs: &[Tensor]) -> Result<Vec<Tensor>, String> {
        if unsafe { tuner_run(self.0, inputs.as_ptr(), inputs.len()) } != 0 {
            return Err(text(unsafe { tuner_error() }));
        }
        let numbers = 0..unsafe { tuner_n_outputs(self.0) };
        Ok(numbers.map(|number| unsafe { *tuner_output(self.0, number) }).collect())
    }
}

impl Drop for Library {
    fn drop(&mut self) {
        unsafe { tuner_close(self.0) }
    }
}

fn run() -> Result<(), String> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (folder, files) = arguments.split_first().ok_or("usage: run_library FOLDER [FILE...]")?;
    let mut library = Library::open(folder)?;
    let mut inputs = library.inputs();
    let mut contents = Vec::new();
    for (number, input) in inputs.iter_mut().enumerate() {
        let content = match files.get(number) {
            Some(path) => fs::read(path).map_err(|error| format!("{path}: {error}"))?,
            None => vec![0; input.n_bytes],
        };
        input.n_bytes = content.len(); // which the library checks
        input.data = if content.is_empty() { ptr::null() } else { content.as_ptr().cast() };
        contents.push(content);
    }
    for output in library.run(&inputs)? {
        let shape: Vec<String> =
            (0..output.rank).map(|axis| unsafe { *output.shape.add(axis) }.to_string()).collect();
        print!("{} {} {}", text(output.name), text(output.dtype), shape.join("x"));
        if text(output.dtype) == "float32" {
            let n_shown = (output.n_bytes / 4).min(8);
            let numbers = unsafe { slice::from_raw_parts(output.data.cast::<f32>(), n_shown) };
            let shown: Vec<String> = numbers.iter().map(f32::to_string).collect();
            print!(": {}", shown.join(" "));
        }
        println!();
    }
    Ok(())
}

fn main() {
    if let Err(message) = run() {
        eprintln!("run_library: {message}");
        process::exit(1);
    }
}
