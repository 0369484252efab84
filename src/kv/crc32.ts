// Arithmetic of CRC-32 (that of zlib): what joins the checksums of ranges, and the tables with which a kernel computes one.

/** Reflected, as all states here: bit 31 is the coefficient of x^0. */
const POLYNOMIAL = 0xedb8_8320;
const ONE = 0x8000_0000;

/** The product of two polynomials modulo that of the checksum. */
function multiply(a: number, b: number): number {
  let [product, shifted] = [0, b];
  for (let bit = ONE; bit !== 0; bit >>>= 1) {
    if ((a & bit) !== 0) product ^= shifted;
    shifted = (shifted & 1) === 1 ? (shifted >>> 1) ^ POLYNOMIAL : shifted >>> 1;
  }
  return product >>> 0;
}

/** x^(8 * bytes): what a state is multiplied by when so many bytes follow. */
export function shiftOf(bytes: number): number {
  let result = ONE;
  // x^8, squared for each binary digit.
  for (let [power, left] = [ONE >>> 8, bytes]; left > 0; left = Math.floor(left / 2)) {
    if (left % 2 === 1) result = multiply(power, result);
    power = multiply(power, power);
  }
  return result;
}

/** The checksum of two runs of bytes, one behind the other; `shift`: shiftOf() the bytes of the second. */
export function joinChecksums(first: number, second: number, shift: number): number {
  return (multiply(shift, first) ^ second) >>> 0;
}

/**
 * For `threads` threads, each of which sums every `threads`th word of a range up: 4 tables of 256, the effect of each byte of a
 * state when `threads` words follow; then, by thread, what its sum is multiplied by, as `threads` minus its number words follow.
 */
export function threadTables(threads: number): Int32Array {
  const step = shiftOf(4 * threads);
  const tables = Array.from({ length: 1024 }, (_, at) => multiply(step, ((at & 255) << (8 * (at >>> 8))) >>> 0));
  const shifts = Array.from({ length: threads }, (_, thread) => shiftOf(4 * (threads - thread)));
  return Int32Array.from([...tables, ...shifts]);
}
