// What a knob is made of.

interface NumberSetting {
  readonly kind: 'number';
  readonly env: string;
  readonly flag: string;
  readonly unit: string;
  /** 0 may stand for what weftline finds best, below `leastButZero`. */
  readonly min: number;
  readonly leastButZero?: number;
  readonly max: number;
  readonly default: number;
  readonly sentence: string;
}

interface BooleanSetting {
  readonly kind: 'boolean';
  readonly env: string;
  readonly flag: string;
  readonly default: boolean;
  readonly sentence: string;
}

interface TextSetting {
  readonly kind: 'text';
  readonly env: string;
  readonly flag: string;
  readonly default: string;
  /** Of texts that are wrong whatever this machine has; what it has is looked at where the setting is used. */
  readonly pattern?: { readonly of: RegExp; readonly expected: string };
  readonly sentence: string;
}

interface ChoiceSetting {
  readonly kind: 'choice';
  readonly env: string;
  readonly flag: string;
  readonly choices: readonly string[];
  readonly default: string;
  readonly sentence: string;
}

/** One knob: how it is written, what it allows, what it is without being set. */
export type Setting = NumberSetting | BooleanSetting | TextSetting | ChoiceSetting;
