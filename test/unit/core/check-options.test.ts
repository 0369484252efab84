import assert from 'node:assert/strict';
import test from 'node:test';
import { checkOptions, type OptionNames } from '#lib/core/check-options.js';
import { withCode } from '../../support/with-code.ts';

interface DispatchOptions {
  readonly numWorstTokens?: number;
  readonly expertAlignment?: number;
}

const known: OptionNames<DispatchOptions> = { numWorstTokens: true, expertAlignment: true };

function check(options: unknown): void {
  checkOptions(options as DispatchOptions, known, 'options of dispatch');
}

test('Known options pass, whether they are there or not', () => {
  check({});
  check({ numWorstTokens: 1 });
  check({ numWorstTokens: undefined, expertAlignment: 2 });
});

test('An unknown option is refused by name, with those there are', () => {
  assert.throws(
    () => check({ stride: 1 }),
    withCode(
      'WL_INVALID_ARGUMENT',
      /Invalid options of dispatch: expected only numWorstTokens, expertAlignment, got "stride"$/,
    ),
  );
});

test('A mistyped option is refused with the one that was meant', () => {
  for (const typed of ['numWorstToken', 'numworsttokens', 'numWorsTokens']) {
    assert.throws(() => check({ [typed]: 1 }), withCode('WL_INVALID_ARGUMENT', /did you mean numWorstTokens\?/));
  }
});

test('Names that objects inherit are unknown options, too', () => {
  for (const name of ['constructor', 'toString', '__proto__x']) {
    assert.throws(() => check({ [name]: 1 }), withCode('WL_INVALID_ARGUMENT', new RegExp(name)));
  }
});

test('Where an argument stands in place of the options, the error says what it is', () => {
  class Tensor {
    readonly storage = 1;
  }
  assert.throws(
    () => check(new Tensor()),
    withCode('WL_INVALID_ARGUMENT', /got "storage" of a Tensor: give one object with these names$/),
  );
});

test('a value that is not an object is refused', () => {
  for (const options of [null, 'text', 5, [1]]) {
    assert.throws(
      () => check(options),
      withCode('WL_INVALID_ARGUMENT', /Invalid options of dispatch: expected an object/),
    );
  }
});
