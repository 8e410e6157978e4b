//! A small multilayer perceptron in f32: two hidden layers, one output, and Adam to train it.
//!
//! It scores one action of one tree node at a time, thousands of times per tree. So it is small enough for the
//! first-level cache, and its loops run along the [`HIDDEN`] units of a layer, which the compiler turns into
//! vector instructions. Hidden units are rectified, so that no result depends on a platform's `tanh`.

use super::rng::Rng;

/// Units of each hidden layer.
pub(super) const HIDDEN: usize = 16;
/// Slope for negative sums; a little above zero keeps every unit trainable.
const LEAK: f32 = 0.1;

/// A network from `inputs` numbers to one.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Net {
    inputs: usize,
    /// First layer: a row of units for each input, then the biases; then the second layer in the same form;
    /// then output weights and bias.
    weights: Vec<f32>,
}

/// Results of a forward pass that the backward pass needs.
#[derive(Clone, Copy)]
pub(super) struct Trace {
    first: [f32; HIDDEN],
    second: [f32; HIDDEN],
    /// The output.
    pub output: f32,
}

/// One layer, its weights in rows by input.
struct Layer<'a> {
    rows: &'a [[f32; HIDDEN]],
    bias: &'a [f32; HIDDEN],
}

impl Layer<'_> {
    #[inline]
    fn forward(&self, inputs: &[f32]) -> [f32; HIDDEN] {
        let mut sums = *self.bias;
        for (row, &input) in self.rows.iter().zip(inputs) {
            for (sum, weight) in sums.iter_mut().zip(row) {
                *sum += weight * input;
            }
        }
        sums.map(|sum| if sum > 0.0 { sum } else { LEAK * sum })
    }
}

impl Net {
    /// Number of weights for this number of inputs.
    pub const fn size(inputs: usize) -> usize {
        (inputs + 1) * HIDDEN + (HIDDEN + 1) * HIDDEN + HIDDEN + 1
    }

    /// Random weights: uniform, scaled to the inputs of each layer (He et al., ICCV 2015); the output layer is small,
    /// so that the first policy is close to uniform.
    pub fn random(inputs: usize, rng: &mut Rng) -> Net {
        let mut weights = vec![0.0; Net::size(inputs)];
        let mut fill = |from: usize, rows: usize, fan_in: usize, gain: f32| {
            let limit = gain * (6.0 / fan_in as f32).sqrt();
            for weight in &mut weights[from..from + rows] {
                *weight = (2.0 * rng.unit() - 1.0) * limit;
            }
        };
        let second = (inputs + 1) * HIDDEN;
        let output = second + (HIDDEN + 1) * HIDDEN;
        fill(0, inputs * HIDDEN, inputs, 1.0);
        fill(second, HIDDEN * HIDDEN, HIDDEN, 1.0);
        fill(output, HIDDEN, HIDDEN, 0.05);
        Net { inputs, weights }
    }

    /// A network with these weights; `None` unless their number is right and all are finite.
    pub fn from_weights(inputs: usize, weights: Vec<f32>) -> Option<Net> {
        let valid = weights.len() == Net::size(inputs) && weights.iter().all(|weight| weight.is_finite());
        valid.then_some(Net { inputs, weights })
    }

    /// The weights, in the order of the model file.
    pub fn weights(&self) -> &[f32] {
        &self.weights
    }

    /// Both layers, and the output weights.
    #[inline]
    fn parts(&self) -> (Layer<'_>, Layer<'_>, &[f32]) {
        // The output weights are the last row; only the output bias is left over.
        let (rows, _) = self.weights.as_chunks::<HIDDEN>();
        let (first, second) = rows.split_at(self.inputs + 1);
        let output = &self.weights[(self.inputs + 1 + HIDDEN + 1) * HIDDEN..];
        (
            Layer { rows: &first[..self.inputs], bias: &first[self.inputs] },
            Layer { rows: &second[..HIDDEN], bias: &second[HIDDEN] },
            output,
        )
    }

    /// Computes the output for these inputs, and what the backward pass needs.
    #[inline]
    pub fn forward(&self, inputs: &[f32]) -> Trace {
        let (one, two, out) = self.parts();
        let first = one.forward(inputs);
        let second = two.forward(&first);
        let output = second.iter().zip(out).fold(out[HIDDEN], |sum, (unit, weight)| sum + unit * weight);
        Trace { first, second, output }
    }

    /// Adds to `gradient` the derivative of the output by each weight, times `slope`.
    pub fn backward(&self, inputs: &[f32], trace: &Trace, slope: f32, gradient: &mut [f32]) {
        let (_, two, out) = self.parts();
        let (rows, _) = gradient.as_chunks_mut::<HIDDEN>();
        let (first_rows, rest) = rows.split_at_mut(self.inputs + 1);
        let (second_rows, out_rows) = rest.split_at_mut(HIDDEN + 1);
        let mut second_slope = [0.0; HIDDEN];
        for at in 0..HIDDEN {
            out_rows[0][at] += slope * trace.second[at];
            second_slope[at] = slope * out[at] * bend(trace.second[at]);
        }
        let mut first_slope = [0.0; HIDDEN];
        for at in 0..HIDDEN {
            accumulate(&mut second_rows[at], &second_slope, trace.first[at]);
            let sum: f32 = two.rows[at].iter().zip(&second_slope).map(|(weight, slope)| weight * slope).sum();
            first_slope[at] = sum * bend(trace.first[at]);
        }
        accumulate(&mut second_rows[HIDDEN], &second_slope, 1.0);
        for (row, &input) in first_rows.iter_mut().zip(inputs) {
            accumulate(row, &first_slope, input);
        }
        accumulate(&mut first_rows[self.inputs], &first_slope, 1.0);
        if let Some(bias) = gradient.last_mut() {
            *bias += slope;
        }
    }
}

#[inline]
fn accumulate(row: &mut [f32; HIDDEN], slopes: &[f32; HIDDEN], factor: f32) {
    for (cell, slope) in row.iter_mut().zip(slopes) {
        *cell += slope * factor;
    }
}

/// Derivative of the rectifier, from its result.
#[inline]
fn bend(result: f32) -> f32 {
    if result > 0.0 { 1.0 } else { LEAK }
}

/// The Adam optimiser (Kingma and Ba, ICLR 2015) of one network.
#[derive(Clone, Debug)]
pub(super) struct Adam {
    mean: Vec<f32>,
    square: Vec<f32>,
    steps: i32,
}

impl Adam {
    /// An optimiser for this number of weights.
    pub fn new(weights: usize) -> Adam {
        Adam { mean: vec![0.0; weights], square: vec![0.0; weights], steps: 0 }
    }

    /// Moves the weights of `net` against `gradient`, and clears the gradient. A gradient longer than `longest`
    /// is shortened to it first: one unusual tree must not undo what was learned.
    pub fn step(&mut self, net: &mut Net, gradient: &mut [f32], rate: f32, longest: f32) {
        const KEEP_MEAN: f32 = 0.9;
        const KEEP_SQUARE: f32 = 0.999;
        let length = gradient.iter().map(|slope| slope * slope).sum::<f32>().sqrt();
        if !length.is_finite() {
            gradient.fill(0.0);
            return;
        }
        let scale = if length > longest { longest / length } else { 1.0 };
        self.steps = self.steps.saturating_add(1);
        let mean_bias = 1.0 - KEEP_MEAN.powi(self.steps);
        let square_bias = 1.0 - KEEP_SQUARE.powi(self.steps);
        let state = self.mean.iter_mut().zip(&mut self.square);
        for ((weight, slope), (mean, square)) in net.weights.iter_mut().zip(gradient).zip(state) {
            let g = *slope * scale;
            *mean = KEEP_MEAN * *mean + (1.0 - KEEP_MEAN) * g;
            *square = KEEP_SQUARE * *square + (1.0 - KEEP_SQUARE) * g * g;
            *weight -= rate * (*mean / mean_bias) / ((*square / square_bias).sqrt() + 1e-8);
            *slope = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_gradient_is_the_derivative() {
        let mut rng = Rng::new(1);
        let mut net = Net::random(5, &mut rng);
        // Larger output weights than at the start, so that differences are visible in f32.
        for weight in &mut net.weights {
            *weight += rng.unit() - 0.5;
        }
        let inputs = [0.3, -0.7, 1.0, 0.0, 0.5];
        let trace = net.forward(&inputs);
        let mut gradient = vec![0.0; Net::size(5)];
        net.backward(&inputs, &trace, 1.0, &mut gradient);
        for (at, &slope) in gradient.iter().enumerate() {
            let mut moved = net.clone();
            moved.weights[at] += 1e-3;
            let difference = (moved.forward(&inputs).output - trace.output) / 1e-3;
            assert!((difference - slope).abs() < 0.02 * (1.0 + slope.abs()), "{at}: {difference} {slope}");
        }
    }

    #[test]
    fn it_learns_a_function() {
        let mut rng = Rng::new(2);
        let mut net = Net::random(2, &mut rng);
        let mut adam = Adam::new(Net::size(2));
        let mut gradient = vec![0.0; Net::size(2)];
        let mut error = 0.0;
        for round in 0..400 {
            error = 0.0;
            for _ in 0..32 {
                let inputs = [rng.unit(), rng.unit()];
                let wanted = if (inputs[0] > 0.5) == (inputs[1] > 0.5) { 1.0 } else { 0.0 };
                let trace = net.forward(&inputs);
                let off = trace.output - wanted;
                error += off * off / 32.0;
                net.backward(&inputs, &trace, off / 32.0, &mut gradient);
            }
            adam.step(&mut net, &mut gradient, 0.01, 10.0);
            assert!(round > 0 || error > 0.1);
        }
        assert!(error < 0.1, "{error}");
    }

    #[test]
    fn weights_are_checked() {
        assert!(Net::from_weights(3, vec![0.0; Net::size(3)]).is_some());
        assert!(Net::from_weights(3, vec![0.0; Net::size(3) - 1]).is_none());
        assert!(Net::from_weights(3, vec![f32::NAN; Net::size(3)]).is_none());
    }
}
