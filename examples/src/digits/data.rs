//! The handwritten digits, compiled into the binary (see `data/README.md` for their origin and
//! licence).

/// Pixels of one image, 8 × 8.
pub const PIXELS: usize = 64;
/// Number of classes, the digits 0–9.
pub const CLASSES: usize = 10;
/// Largest pixel value in the files; pixels are divided by it.
const BRIGHTEST: f32 = 16.0;

const TRAIN_CSV: &str = include_str!("../../data/digits_train.csv");
const TEST_CSV: &str = include_str!("../../data/digits_test.csv");

/// Images with their labels.
#[derive(Clone, Debug, PartialEq)]
pub struct Dataset {
    /// `len × 64` pixels in `[0, 1]`, image after image.
    pixels: Vec<f32>,
    labels: Vec<u8>,
}

/// Images that are trained on together.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Batch {
    /// `n × 64` pixels in `[0, 1]`, image after image.
    pub pixels: Vec<f32>,
    /// The labels, one per image.
    pub labels: Vec<u8>,
}

/// A line of the data is not 64 pixels 0–16 and a label 0–9. No data was kept.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the digits is not {PIXELS} pixels 0–16 and a label 0–9")]
pub struct DataError {
    /// Number of the line, from 1.
    pub line: usize,
}

impl Dataset {
    /// The 1,437 training images.
    ///
    /// # Errors
    /// The file in the binary is damaged.
    pub fn train() -> Result<Self, DataError> {
        Self::parse(TRAIN_CSV)
    }

    /// The 360 test images.
    ///
    /// # Errors
    /// The file in the binary is damaged.
    pub fn test() -> Result<Self, DataError> {
        Self::parse(TEST_CSV)
    }

    /// Reads lines of 64 pixels and a label, separated by commas.
    ///
    /// # Errors
    /// The first line that has another form.
    pub fn parse(csv: &str) -> Result<Self, DataError> {
        let mut data = Self {
            pixels: Vec::new(),
            labels: Vec::new(),
        };
        for (index, line) in csv.lines().enumerate() {
            data.push_line(line).ok_or(DataError { line: index + 1 })?;
        }
        Ok(data)
    }

    fn push_line(&mut self, line: &str) -> Option<()> {
        let values: Vec<u8> = line
            .split(',')
            .map(|field| field.parse().ok())
            .collect::<Option<_>>()?;
        let (&label, pixels) = values.split_last()?;
        let valid = pixels.len() == PIXELS
            && usize::from(label) < CLASSES
            && pixels.iter().all(|p| f32::from(*p) <= BRIGHTEST);
        if !valid {
            return None;
        }
        self.pixels
            .extend(pixels.iter().map(|p| f32::from(*p) / BRIGHTEST));
        self.labels.push(label);
        Some(())
    }

    /// Number of images.
    #[must_use]
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there is no image.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// The labels, one per image.
    #[must_use]
    pub fn labels(&self) -> &[u8] {
        &self.labels
    }

    /// The images `indices`; those that do not exist are left out.
    #[must_use]
    pub fn batch(&self, indices: &[usize]) -> Batch {
        let mut batch = Batch::default();
        for &index in indices {
            if let (Some(image), Some(label)) = (self.image(index), self.labels.get(index)) {
                batch.pixels.extend_from_slice(image);
                batch.labels.push(*label);
            }
        }
        batch
    }

    /// All images.
    #[must_use]
    pub fn all(&self) -> Batch {
        Batch {
            pixels: self.pixels.clone(),
            labels: self.labels.clone(),
        }
    }

    fn image(&self, index: usize) -> Option<&[f32]> {
        self.pixels.get(index * PIXELS..(index + 1) * PIXELS)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_files_parse_whole() {
        let train = Dataset::train().unwrap();
        let test = Dataset::test().unwrap();
        assert_eq!((train.len(), test.len()), (1437, 360));
        for class in 0..10 {
            assert!(
                train.labels().contains(&class) && test.labels().contains(&class),
                "class {class}"
            );
        }
        assert!(train.pixels.iter().all(|p| (0.0..=1.0).contains(p)));
    }

    #[test]
    fn a_batch_holds_the_images_asked_for() {
        let train = Dataset::train().unwrap();
        let batch = train.batch(&[3, 0]);
        assert_eq!(batch.pixels[PIXELS..], train.pixels[..PIXELS]);
        assert_eq!(batch.labels, [train.labels[3], train.labels[0]]);
        assert_eq!(train.batch(&[1437]), Batch::default());
    }

    #[test]
    fn damaged_lines_are_named() {
        let good = TRAIN_CSV.lines().next().unwrap();
        for bad in [
            " ".to_owned(),
            good.replacen("0,", "17,", 1),
            good.replacen("0,", "", 1),
            format!("{good}0"),
        ] {
            assert_eq!(
                Dataset::parse(&format!("{good}\n{bad}")),
                Err(DataError { line: 2 }),
                "{bad}"
            );
        }
    }
}
