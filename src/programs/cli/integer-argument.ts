// Integers on the command line, checked where they are read.
import { InvalidArgumentError } from 'commander';

/** A parser for commander: takes integers from `min` to `max` and says so otherwise. */
export function integerArgument(min: number, max: number): (text: string) => number {
  return (text) => {
    const value = Number(text);
    if (/^[0-9]{1,15}$/.test(text) && value >= min && value <= max) return value;
    throw new InvalidArgumentError(`Allowed is an integer from ${min} to ${max}.`);
  };
}
