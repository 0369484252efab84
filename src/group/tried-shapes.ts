// Shapes that a measurement tries in place of those that the rules choose: `bench ep --shapes` alone.

/** Of the kernel that sends rows. */
export interface TriedSending {
  readonly blocks: number;
  /** Of a block, that move rows. */
  readonly warps: number;
  /** Rows move in equal parts of at most so many bytes. */
  readonly mostPartBytes: number;
}

/** Of the kernel that adds rows up. */
interface TriedGather {
  readonly blocks: number;
  readonly warps: number;
}

export interface TriedShapes {
  readonly sending?: TriedSending;
  readonly gather?: TriedGather;
}

const tried = new WeakMap<object, TriedShapes>();

/** What objects that are made on the device from now on try. */
export function tryShapes(device: object, shapes: TriedShapes): void {
  tried.set(device, shapes);
}

export function triedShapes(device: object): TriedShapes {
  return tried.get(device) ?? {};
}
