/* Figures for people. */

import { language } from './texts.js';

const number = (value, digits) =>
  value.toLocaleString(language(), { minimumFractionDigits: digits, maximumFractionDigits: digits });

const BYTES = [
  [2 ** 40, 'TiB'],
  [2 ** 30, 'GiB'],
  [2 ** 20, 'MiB'],
  [2 ** 10, 'KiB'],
];

/** @param {number} value bytes */
export function bytes(value) {
  const [unit, name] = BYTES.find(([unit]) => Math.abs(value) >= unit) ?? [1, 'B'];
  return `${number(value / unit, unit === 1 ? 0 : 1)} ${name}`;
}

const TIMES = [
  [86400, 'day'],
  [3600, 'hour'],
  [60, 'minute'],
];

/** @param {number} value seconds; long ones in the largest unit of which there are two */
export function seconds(value) {
  const [unit, name] = TIMES.find(([unit]) => Math.abs(value) >= 2 * unit) ?? [1, 'second'];
  const digits = unit === 1 ? (Math.abs(value) < 10 ? 2 : 1) : 0;
  return (value / unit).toLocaleString(language(), {
    style: 'unit',
    unit: name,
    unitDisplay: 'short',
    minimumFractionDigits: digits,
    maximumFractionDigits: digits,
  });
}

/** @param {number} value percent */
export const percent = (value) => `${number(value, 0)} %`;

export const count = (value) => number(value, 0);

/** One of the manager's figures, by what its name says it is. */
export function figure(key, value) {
  if (key === 'kvcache_transport') {
    return ['-', 'posix', 'gds (compatible mode)', 'gds'][value] ?? String(value);
  }
  if (key.endsWith('_util')) {
    return percent(value);
  }
  if (key.endsWith('_mem')) {
    return bytes(value);
  }
  if (key.endsWith('evicted_rate')) {
    return `${number(value, 2)} /s`;
  }
  if (key.endsWith('_rate')) {
    return `${bytes(value)}/s`;
  }
  if (key.endsWith('_seconds') || key.startsWith('kvcache_first_token')) {
    return seconds(value);
  }
  return count(value);
}
