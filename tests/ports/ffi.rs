// The C interface from Rust: prints the label and the uncertainty of a golden image.

use std::env;
use std::ffi::{c_char, c_int, c_void, CStr, CString};
use std::ptr;

#[repr(C)]
struct Error {
    text: [c_char; 1024],
}

#[repr(C)]
struct Image {
    pixels: *const c_void,
    stride: isize,
}

#[repr(C)]
#[derive(Default)]
struct Answer {
    class_id: i32,
    decision: i32,
    confidence: f32,
    uncertainty: f32,
    model_uncertainty: f32,
    standard_error: f32,
    error_probability: f32,
    novelty: f32,
    novelty_score: f32,
}

enum Model {}

extern "C" {
    fn uce_edge_load(path: *const c_char, options: *const c_void, model: *mut *mut Model, error: *mut Error) -> c_int;
    fn uce_edge_predict(
        model: *const Model, images: *const Image, count: usize, passes: *const c_void,
        answers: *mut Answer, probabilities: *mut f32, error: *mut Error,
    ) -> c_int;
    fn uce_edge_class_name(model: *const Model, class_id: i32) -> *const c_char;
    fn uce_edge_message(error: *const Error) -> *const c_char;
    fn uce_edge_free(model: *mut Model);
}

fn main() {
    let words: Vec<String> = env::args().collect();
    let path = CString::new(words[1].as_str()).unwrap();
    let pixels = std::fs::read(&words[2]).unwrap();
    let mut error = Error { text: [0; 1024] };
    let mut model: *mut Model = ptr::null_mut();
    unsafe {
        if uce_edge_load(path.as_ptr(), ptr::null(), &mut model, &mut error) != 0 {
            eprintln!("error: {}", CStr::from_ptr(uce_edge_message(&error)).to_str().unwrap());
            std::process::exit(1);
        }
        let image = Image { pixels: pixels.as_ptr().cast(), stride: 0 };
        let mut answer = Answer::default();
        let code = uce_edge_predict(
            model, &image, 1, ptr::null(), &mut answer, ptr::null_mut(), &mut error,
        );
        assert_eq!(code, 0);
        let label = CStr::from_ptr(uce_edge_class_name(model, answer.class_id)).to_str().unwrap();
        println!("{} {:e}", label, answer.uncertainty);
        uce_edge_free(model);
    }
}
