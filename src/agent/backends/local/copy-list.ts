// Copies that are to be made, in columns: where each piece is here, where it is there, how long it is.

export class CopyList {
  readonly local: Float64Array;
  readonly remote: Float64Array;
  readonly bytes: Float64Array;
  count = 0;

  constructor(capacity: number) {
    this.local = new Float64Array(capacity);
    this.remote = new Float64Array(capacity);
    this.bytes = new Float64Array(capacity);
  }

  add(local: number, remote: number, bytes: number): void {
    const at = this.count++;
    this.local[at] = local;
    this.remote[at] = remote;
    this.bytes[at] = bytes;
  }

  get totalBytes(): number {
    let sum = 0;
    for (let at = 0; at < this.count; at++) sum += this.bytes[at]!;
    return sum;
  }

  /** How many pieces `cut` gives. */
  countPieces(longest: number): number {
    let pieces = 0;
    for (let at = 0; at < this.count; at++) pieces += Math.ceil(this.bytes[at]! / longest);
    return pieces;
  }

  /** Hands over all copies in order, cut into pieces of at most `longest` bytes. */
  cut(longest: number, take: (local: number, remote: number, bytes: number) => void): void {
    for (let at = 0; at < this.count; at++) {
      const local = this.local[at]!;
      const remote = this.remote[at]!;
      const bytes = this.bytes[at]!;
      for (let done = 0; done < bytes; done += longest) {
        take(local + done, remote + done, Math.min(longest, bytes - done));
      }
    }
  }
}
